// Any device: computed on the CPU, so that the bytes are the same. Only the
// CPU's search reads them.
#include "ops/prepare_codes.h"

#include <torch/library.h>

#include <torchvq/ops/prepare_codes.h>

namespace torchvq {
namespace {

at::Tensor prepare_codes(const at::Tensor& codebook) {
  detail::check_prepare_codes(codebook);
  return ops::prepare_codes(codebook.to(at::kCPU)).to(codebook.device());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("prepare_codes", prepare_codes);
}

}  // namespace torchvq
