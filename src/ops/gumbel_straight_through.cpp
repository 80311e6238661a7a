#include <torchvq/ops/gumbel_straight_through.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/gumbel_straight_through.h"

namespace torchvq {

namespace detail {
namespace {

Metric check_gumbel_inputs(const char* op, const at::Tensor& x, const at::Tensor& codebook,
                           const at::Tensor& indices, double temperature, c10::string_view metric) {
  check_tokens(op, "x", x);
  check_codebook_of(op, codebook, x);
  check_per_token(op, "indices", indices, at::kLong, x);
  check_non_negative(op, "temperature", temperature);
  return parse_metric(op, metric);
}

}  // namespace

Metric check_gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                     const at::Tensor& indices, double temperature,
                                     c10::string_view metric) {
  return check_gumbel_inputs("gumbel_straight_through", x, codebook, indices, temperature, metric);
}

Metric check_gumbel_straight_through_backward(const at::Tensor& grad, const at::Tensor& x,
                                              const at::Tensor& codebook, const at::Tensor& indices,
                                              double temperature, c10::string_view metric) {
  constexpr auto op = "gumbel_straight_through_backward";
  check_same_tokens(op, "x", x, "grad", grad);
  return check_gumbel_inputs(op, x, codebook, indices, temperature, metric);
}

}  // namespace detail

namespace ops {

at::Tensor gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                   const at::Tensor& indices, double temperature,
                                   c10::string_view metric) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, c10::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::gumbel_straight_through");
  return op.call(x, codebook, indices, temperature, metric);
}

std::tuple<at::Tensor, at::Tensor> gumbel_straight_through_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codebook,
    const at::Tensor& indices, double temperature, c10::string_view metric,
    std::array<bool, 2> grads) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                       const at::Tensor&, const at::Tensor&, double,
                                                       c10::string_view, std::array<bool, 2>);
  static auto op = detail::op_handle<Signature>("torchvq::gumbel_straight_through_backward");
  return op.call(grad, x, codebook, indices, temperature, metric, grads);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "gumbel_straight_through(Tensor x, Tensor codebook, Tensor indices, *, float temperature, "
      "str metric) -> Tensor");
  m.def(
      "gumbel_straight_through_backward(Tensor grad, Tensor x, Tensor codebook, Tensor indices, *, "
      "float temperature, str metric, bool[2] grads) -> (Tensor, Tensor)");
}
