#include <torchvq/ops/sampled_beam_search.h>

#include <torch/library.h>

#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/residual_arguments.h"
#include "ops/capture.h"
#include "ops/residual_beam_search.h"
#include "ops/sampled_beam_search.h"

namespace torchvq {

namespace detail {

void check_sampled_beam_search(const at::Tensor& x, at::TensorList codebooks, at::TensorList rngs,
                               int64_t beam, double temperature, c10::string_view metric,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& depth,
                               at::ArrayRef<double> weights) {
  constexpr auto op = "sampled_beam_search";
  check_beam_arguments(op, x, codebooks, beam, mask, depth, weights);
  TORCH_CHECK_VALUE(rngs.size() == codebooks.size(), op, ": expected rngs to be one for each of ",
                    codebooks.size(), " levels, but got ", rngs.size());
  for (const auto& rng : rngs) {
    check_rng(op, rng);
    check_same_device(op, "x", x, "rng", rng);
  }
  check_non_negative(op, "temperature", temperature);
  parse_metric(op, metric);
}

}  // namespace detail

namespace ops {

at::Tensor sampled_beam_search(const at::Tensor& x, at::TensorList codebooks, at::TensorList rngs,
                               int64_t beam, double temperature, c10::string_view metric,
                               const ResidualBeamSearchOptions& options) {
  using Signature = at::Tensor(const at::Tensor&, at::TensorList, at::TensorList, int64_t, double,
                               c10::string_view, const std::optional<at::Tensor>&,
                               const std::optional<at::Tensor>&, at::ArrayRef<double>);
  static auto op = detail::op_handle<Signature>("torchvq::sampled_beam_search");
  return op.call(x, codebooks, rngs, beam, temperature, metric, options.mask(), options.depth(),
                 options.weights());
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "sampled_beam_search(Tensor x, Tensor[] codebooks, Tensor[] rngs, int beam, *, float "
      "temperature, str metric, Tensor? mask=None, Tensor? depth=None, float[] weights=[]) -> "
      "Tensor",
      torchvq::detail::searches());
}
