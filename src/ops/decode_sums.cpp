#include <torchvq/ops/decode_sums.h>

#include <torch/library.h>

#include "detail/fixed_point.h"
#include "detail/op_handle.h"
#include "ops/decode_sums.h"

namespace torchvq {

namespace detail {

void check_decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  constexpr auto op = "decode_sums";
  check_sums(op, sums, exponents);
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected dtype to be float32 or float64, but got ", dtype);
}

}  // namespace detail

namespace ops {

at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType);
  static auto op = detail::op_handle<Signature>("torchvq::decode_sums");
  return op.call(sums, exponents, dtype);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("decode_sums(Tensor sums, Tensor exponents, *, ScalarType dtype) -> Tensor");
}
