// Any device, CPU included: a copy.
#include "ops/sync_update_v.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor sync_update_v(const at::Tensor& quantized, double v) {
  detail::check_sync_update_v(quantized, v);
  return quantized.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sync_update_v", sync_update_v);
}

}  // namespace torchvq
