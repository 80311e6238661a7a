#include <torchvq/ops/commitment_loss.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/token_checks.h"
#include "ops/commitment_loss.h"

namespace torchvq {

namespace detail {

void check_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  check_same_tokens("commitment_loss", "x", x, "codes", codes);
  check_mask("commitment_loss", mask, x);
}

void check_commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& codes,
                                    const std::optional<at::Tensor>& mask) {
  constexpr auto op = "commitment_loss_backward";
  check_same_tokens(op, "x", x, "codes", codes);
  check_mask(op, mask, x);
  check_dtype(op, "grad", grad, value_dtype(x, codes));
  TORCH_CHECK_VALUE(grad.dim() == 0, op, ": expected grad to be a scalar (), but got shape ",
                    grad.sym_sizes());
  check_same_device(op, "x", x, "grad", grad);
}

}  // namespace detail

namespace ops {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::commitment_loss");
  return op.call(x, codes, mask);
}

at::Tensor commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& codes,
                                    const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::commitment_loss_backward");
  return op.call(grad, x, codes, mask);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("commitment_loss(Tensor x, Tensor codes, *, Tensor? mask=None) -> Tensor");
  m.def(
      "commitment_loss_backward(Tensor grad, Tensor x, Tensor codes, *, Tensor? mask=None) "
      "-> Tensor");
}
