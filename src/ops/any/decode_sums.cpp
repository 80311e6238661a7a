// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/decode_sums.h"

#include <torch/library.h>

#include "detail/fixed_point.h"

namespace torchvq {
namespace {

at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  detail::check_decode_sums(sums, exponents, dtype);
  return detail::decode_to_double(sums, exponents, dtype).to(dtype).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("decode_sums", decode_sums); }

}  // namespace torchvq
