#include "ops/prepare_codes.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor prepare_codes(const at::Tensor& codebook) {
  detail::check_prepare_codes(codebook);
  return codebook.new_empty_symint(detail::prepared_sizes(codebook),
                                   codebook.options().dtype(at::kByte));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("prepare_codes", prepare_codes); }

}  // namespace torchvq
