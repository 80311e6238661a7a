#include "ops/token_moments.h"

#include <torch/library.h>

#include <torchvq/ops/token_moments.h>

#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/token_checks.h"

namespace torchvq {

void detail::check_token_moments(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "token_moments";
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 1, op, ": expected x to have shape (*, D), but got a scalar");
  TORCH_CHECK_VALUE(x.sym_size(-1) >= 1, op,
                    ": expected x to have at least 1 feature, but got shape ", x.sym_sizes());
  if (!mask) return;
  check_dtype(op, "mask", *mask, at::kBool);
  const auto tokens = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  TORCH_CHECK_VALUE(mask->sym_sizes() == tokens, op, ": expected mask to have shape ", tokens,
                    ", that of x without features, but got ", mask->sym_sizes());
  check_same_device(op, "x", x, "mask", *mask);
}

void detail::check_token_moments_backward(const at::Tensor& grad, const at::Tensor& x,
                                          const at::Tensor& moments,
                                          const std::optional<at::Tensor>& mask) {
  constexpr auto op = "token_moments_backward";
  check_token_moments(x, mask);
  check_dtype(op, "moments", moments, sum_dtype(x));
  check_same_device(op, "x", x, "moments", moments);
  check_same_device(op, "x", x, "grad", grad);
  const auto size = 1 + 4 * x.sym_size(-1);
  TORCH_CHECK_VALUE(moments.dim() == 1 && moments.sym_size(0) == size && grad.dim() == 1 &&
                        grad.sym_size(0) == size,
                    op, ": expected moments and grad to have shape [", size, "], but got ",
                    moments.sym_sizes(), " and ", grad.sym_sizes());
}

at::Tensor ops::token_moments(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::token_moments");
  return op.call(x, mask);
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("token_moments(Tensor x, *, Tensor? mask=None) -> Tensor");
  // The gradient of x; private, called only by autograd.
  m.def("token_moments_backward(Tensor grad, Tensor x, Tensor moments, Tensor? mask) -> Tensor");
}
