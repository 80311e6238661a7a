#include <torchvq/ops/residual_beam_search.h>

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <torchvq/ops/nearest_code.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/residual_beam_search.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kOp = "residual_beam_search";

void check_weights(at::ArrayRef<double> weights, size_t levels) {
  TORCH_CHECK_VALUE(weights.empty() || weights.size() == levels, kOp,
                    ": expected weights to be none or one for each of ", levels,
                    " levels, but got ", weights.size());
  for (const double weight : weights) {
    TORCH_CHECK_VALUE(std::isfinite(weight) && weight >= 0, kOp,
                      ": expected weights to be finite and non-negative, but got ", weight);
  }
}

at::ScalarType problem_dtype(const at::Tensor& x, at::TensorList codebooks) {
  bool wide = x.scalar_type() == at::kDouble;
  for (const auto& codebook : codebooks) wide |= codebook.scalar_type() == at::kDouble;
  return wide ? at::kDouble : at::kFloat;
}

int64_t levels_in_use(const std::optional<at::Tensor>& depth, int64_t levels) {
  if (!depth) return levels;
  const auto used = depth->item<int64_t>();
  TORCH_CHECK_VALUE(used >= 1 && used <= levels, kOp, ": expected depth to be in [1, ", levels,
                    "], but got ", used);
  return used;
}

}  // namespace

void check_residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights) {
  check_tokens(kOp, "x", x);
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1, kOp, ": expected x to have at least 1 dim, but got shape ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(!codebooks.empty(), kOp,
                    ": expected codebooks to have at least 1 level, but got none");
  for (const auto& codebook : codebooks) check_codebook_of(kOp, codebook, x);
  TORCH_CHECK_VALUE(beam >= 1, kOp, ": expected beam to be at least 1, but got ", beam);
  check_mask(kOp, mask, x);
  if (depth) {
    check_dtype(kOp, "depth", *depth, at::kLong);
    TORCH_CHECK_VALUE(depth->sym_numel() == 1, kOp,
                      ": expected depth to be one number, but got shape ", depth->sym_sizes());
  }
  check_weights(weights, codebooks.size());
}

BeamProblem::BeamProblem(const at::Tensor& x_, at::TensorList codebooks_, int64_t beam_,
                         const std::optional<at::Tensor>& mask,
                         const std::optional<at::Tensor>& depth, at::ArrayRef<double> weights_)
    : beam(beam_) {
  check_residual_beam_search(x_, codebooks_, beam, mask, depth, weights_);
  const auto dtype = problem_dtype(x_, codebooks_);
  x = x_.to(dtype).contiguous();
  heads = x.size(0), tokens = x.size(1), dim = x.size(2);
  levels = static_cast<int64_t>(codebooks_.size());
  const auto used = static_cast<size_t>(levels_in_use(depth, levels));
  for (size_t n = 0; n < used; ++n) {
    codebooks.push_back(codebooks_[n].to(dtype).contiguous());
  }
  if (!weights_.empty()) weights.assign(weights_.begin(), weights_.begin() + used);
}

bool BeamProblem::greedy() const {
  bool all_positive = true;
  for (const double weight : weights) all_positive &= weight > 0;
  return beam == 1 && all_positive;
}

at::Tensor greedy_search(const BeamProblem& problem) {
  const auto options = ops::NearestCodeOptions().return_codes(true);
  std::vector<at::Tensor> indices;
  auto residual = problem.x;
  for (size_t n = 0; n < problem.codebooks.size(); ++n) {
    const auto nearest = ops::nearest_code(residual, problem.codebooks[n], options);
    indices.push_back(nearest.indices);
    residual = residual - nearest.codes;
  }
  return at::stack(indices, -1);
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
      "depth=None, float[] weights=[]) -> Tensor");
}
