#include "ops/paired_commitment_loss.h"

#include <torch/library.h>

#include <torchvq/ops/paired_commitment_loss.h>

#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/token_checks.h"
#include "ops/commitment_loss.h"

namespace torchvq {

namespace detail {

void check_paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const std::optional<at::Tensor>& mask, double to_x,
                                  double to_codes) {
  check_commitment_loss(x, codes, mask);
  check_non_negative("paired_commitment_loss", "to_x", to_x);
  check_non_negative("paired_commitment_loss", "to_codes", to_codes);
}

void check_paired_commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                           const at::Tensor& codes,
                                           const std::optional<at::Tensor>& mask, double to_x,
                                           double to_codes) {
  constexpr auto op = "paired_commitment_loss_backward";
  check_paired_commitment_loss(x, codes, mask, to_x, to_codes);
  check_dtype(op, "grad", grad, value_dtype(x, codes));
  check_rank(op, "grad", grad, 0, "()");
  check_same_device(op, "x", x, "grad", grad);
}

}  // namespace detail

namespace ops {

at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const std::optional<at::Tensor>& mask, double to_x,
                                  double to_codes) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, double, double);
  static auto op = detail::op_handle<Signature>("torchvq::paired_commitment_loss");
  return op.call(x, codes, mask, to_x, to_codes);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "paired_commitment_loss(Tensor x, Tensor codes, *, Tensor? mask=None, float to_x, "
      "float to_codes) -> Tensor");
  // The gradients of x and codes; private, called only by autograd.
  m.def(
      "paired_commitment_loss_backward(Tensor grad, Tensor x, Tensor codes, Tensor? mask, "
      "float to_x, float to_codes) -> (Tensor, Tensor)");
}
