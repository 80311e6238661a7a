#include <torchvq/ops/commitment_cross_entropy.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/commitment_cross_entropy.h"

namespace torchvq {

namespace detail {

Metric check_commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                      const at::Tensor& targets, c10::string_view metric,
                                      const std::optional<at::Tensor>& mask) {
  constexpr auto op = "commitment_cross_entropy";
  check_tokens(op, "x", x);
  check_codebook_of(op, codebook, x);
  check_per_token(op, "targets", targets, at::kLong, x);
  check_mask(op, mask, x);
  return parse_metric(op, metric);
}

}  // namespace detail

namespace ops {

at::Tensor commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& targets, c10::string_view metric,
                                    const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               c10::string_view, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::commitment_cross_entropy");
  return op.call(x, codebook, targets, metric, mask);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> commitment_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& targets,
    c10::string_view metric, const std::optional<at::Tensor>& mask, std::array<bool, 2> grads) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view,
      const std::optional<at::Tensor>&, std::array<bool, 2>);
  static auto op = detail::op_handle<Signature>("torchvq::commitment_cross_entropy_forward");
  return op.call(x, codebook, targets, metric, mask, grads);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "commitment_cross_entropy(Tensor x, Tensor codebook, Tensor targets, *, str metric, "
      "Tensor? mask=None) -> Tensor");
  m.def(
      "commitment_cross_entropy_forward(Tensor x, Tensor codebook, Tensor targets, *, str metric, "
      "Tensor? mask, bool[2] grads) -> (Tensor, Tensor, Tensor)");
}
