#include "ops/sync_update_v.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor sync_update_v(const at::Tensor& quantized, double v) {
  detail::check_sync_update_v(quantized, v);
  return quantized.new_empty_symint(quantized.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("sync_update_v", sync_update_v); }

}  // namespace torchvq
