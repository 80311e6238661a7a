#include "ops/sign_quantize.h"

#include <tuple>

#include <torch/library.h>

#include <torchvq/ops/sign_quantize.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"

namespace torchvq {

namespace detail {

void check_sign_quantize(const at::Tensor& x, double scale) {
  constexpr auto op = "sign_quantize";
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) >= 1 && x.sym_size(-1) <= kMostSignBits, op,
                    ": expected x to have 1 to ", kMostSignBits, " features, but got shape ",
                    x.sym_sizes());
  check_positive(op, "scale", scale);
  check_fits(op, "scale", scale, x.scalar_type());
}

void check_sign_decode(const at::Tensor& indices, int64_t bits, double scale,
                       at::ScalarType dtype) {
  constexpr auto op = "sign_decode";
  check_dtype(op, "indices", indices, at::kLong);
  TORCH_CHECK_VALUE(bits >= 1 && bits <= kMostSignBits, op, ": expected bits to be in [1, ",
                    kMostSignBits, "], but got ", bits);
  check_positive(op, "scale", scale);
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected dtype to be float32 or float64, but got ", dtype);
  check_fits(op, "scale", scale, dtype);
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> sign_quantize(const at::Tensor& x, double scale) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double);
  static auto op = detail::op_handle<Signature>("torchvq::sign_quantize");
  auto [codes, indices] = op.call(x, scale);
  return {codes, indices};
}

at::Tensor sign_decode(const at::Tensor& indices, int64_t bits, double scale,
                       at::ScalarType dtype) {
  using Signature = at::Tensor(const at::Tensor&, int64_t, double, std::optional<at::ScalarType>);
  static auto op = detail::op_handle<Signature>("torchvq::sign_decode");
  return op.call(indices, bits, scale, dtype);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("sign_quantize(Tensor x, *, float scale=1.0) -> (Tensor codes, Tensor indices)");
  m.def(
      "sign_decode(Tensor indices, int bits, *, float scale=1.0, ScalarType? dtype=None) "
      "-> Tensor");
}
