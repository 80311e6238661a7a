#include <torchvq/ops/codebook_diversity_loss.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/codebook_diversity_loss.h"

namespace torchvq {

namespace detail {

Metric check_codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                     double temperature, c10::string_view metric,
                                     const std::optional<at::Tensor>& mask,
                                     const std::optional<at::Tensor>& totals) {
  constexpr auto op = "codebook_diversity_loss";
  check_tokens(op, "x", x);
  check_codebook_of(op, codebook, x);
  check_mask(op, mask, x);
  check_non_negative(op, "temperature", temperature);
  if (totals.has_value()) {
    check_floating(op, "totals", *totals);
    check_rank(op, "totals", *totals, 2, "(H, K + 2)");
    check_size(op, "totals", *totals, 0, x.sym_size(0), "heads");
    check_size(op, "totals", *totals, 1, codebook.sym_size(1) + 2, "codes, tokens, ranks");
    check_same_device(op, "x", x, "totals", *totals);
  }
  return parse_metric(op, metric);
}

}  // namespace detail

namespace ops {

at::Tensor codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                   double temperature, c10::string_view metric,
                                   const std::optional<at::Tensor>& mask,
                                   const std::optional<at::Tensor>& totals) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, double, c10::string_view,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::codebook_diversity_loss");
  return op.call(x, codebook, temperature, metric, mask, totals);
}

at::Tensor codebook_diversity_totals(const at::Tensor& x, const at::Tensor& codebook,
                                     double temperature, c10::string_view metric,
                                     const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, double, c10::string_view,
                               const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::codebook_diversity_totals");
  return op.call(x, codebook, temperature, metric, mask);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> codebook_diversity_loss_forward(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& totals,
    std::array<bool, 2> grads) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, double, c10::string_view,
      const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, std::array<bool, 2>);
  static auto op = detail::op_handle<Signature>("torchvq::codebook_diversity_loss_forward");
  return op.call(x, codebook, temperature, metric, mask, totals, grads);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "codebook_diversity_loss(Tensor x, Tensor codebook, *, float temperature, str metric, "
      "Tensor? mask=None, Tensor? totals=None) -> Tensor");
  m.def(
      "codebook_diversity_totals(Tensor x, Tensor codebook, *, float temperature, str metric, "
      "Tensor? mask=None) -> Tensor");
  m.def(
      "codebook_diversity_loss_forward(Tensor x, Tensor codebook, *, float temperature, str "
      "metric, Tensor? mask, Tensor? totals=None, bool[2] grads) -> (Tensor, Tensor, Tensor)");
}
