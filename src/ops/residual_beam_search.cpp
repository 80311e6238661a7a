#include <torchvq/ops/residual_beam_search.h>

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include <torchvq/ops/residual_encode.h>

#include "detail/op_handle.h"
#include "detail/residual_arguments.h"
#include "ops/capture.h"
#include "ops/residual_beam_search.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kResidualBeamSearch = "residual_beam_search";

void check_weights(const char* op, at::ArrayRef<double> weights, size_t levels) {
  TORCH_CHECK_VALUE(weights.empty() || weights.size() == levels, op,
                    ": expected weights to be none or one for each of ", levels,
                    " levels, but got ", weights.size());
  for (const double weight : weights) {
    TORCH_CHECK_VALUE(std::isfinite(weight) && weight >= 0, op,
                      ": expected weights to be finite and non-negative, but got ", weight);
  }
}

}  // namespace

void check_beam_arguments(const char* op, const at::Tensor& x, at::TensorList codebooks,
                          int64_t beam, const std::optional<at::Tensor>& mask,
                          const std::optional<at::Tensor>& depth, at::ArrayRef<double> weights) {
  check_residual_arguments(op, x, codebooks, depth, mask);
  TORCH_CHECK_VALUE(beam >= 1, op, ": expected beam to be at least 1, but got ", beam);
  check_weights(op, weights, codebooks.size());
}

void check_residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights) {
  check_beam_arguments(kResidualBeamSearch, x, codebooks, beam, mask, depth, weights);
}

BeamProblem::BeamProblem(const char* op, const at::Tensor& x_, at::TensorList codebooks_,
                         int64_t beam_, const std::optional<at::Tensor>& mask,
                         const std::optional<at::Tensor>& depth, at::ArrayRef<double> weights_)
    : beam(beam_), levels(static_cast<int64_t>(codebooks_.size())) {
  check_beam_arguments(op, x_, codebooks_, beam, mask, depth, weights_);
  const auto dtype = residual_dtype(x_, codebooks_);
  x = contiguous_as(x_, dtype);
  heads = x.size(0), tokens = x.size(1), dim = x.size(2);
  const auto used = static_cast<size_t>(levels_in_use(op, depth, levels));
  for (size_t n = 0; n < used; ++n) {
    codebooks.push_back(contiguous_as(expand_to_heads(codebooks_[n], heads), dtype));
  }
  if (!weights_.empty()) weights.assign(weights_.begin(), weights_.begin() + used);
}

bool BeamProblem::greedy() const {
  bool all_positive = true;
  for (const double weight : weights) all_positive &= weight > 0;
  return beam == 1 && all_positive;
}

at::Tensor greedy_search(const BeamProblem& problem) {
  return ops::residual_encode(problem.x, problem.codebooks).indices;
}

at::Tensor complete_beam_indices(const BeamProblem& problem, const at::Tensor& indices,
                                 const std::optional<at::Tensor>& mask) {
  const int64_t unused = problem.levels - indices.size(2);
  const auto all = unused > 0 ? at::constant_pad_nd(indices, {0, unused}, -1) : indices;
  return mask ? all.masked_fill(mask->logical_not().unsqueeze(-1), -1) : all;
}

}  // namespace detail

namespace ops {

at::Tensor residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const ResidualBeamSearchOptions& options) {
  using Signature =
      at::Tensor(const at::Tensor&, at::TensorList, int64_t, const std::optional<at::Tensor>&,
                 const std::optional<at::Tensor>&, at::ArrayRef<double>);
  static auto op = detail::op_handle<Signature>("torchvq::residual_beam_search");
  return op.call(x, codebooks, beam, options.mask(), options.depth(), options.weights());
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_beam_search(Tensor x, Tensor[] codebooks, int beam, *, Tensor? mask=None, Tensor? "
      "depth=None, float[] weights=[]) -> Tensor",
      torchvq::detail::searches());
}
