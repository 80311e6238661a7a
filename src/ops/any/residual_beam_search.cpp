// Any device: plain ATen, the reference for the CPU kernel.
//
// Matrix products in float64 score all extensions of all paths; a bound on their rounding error
// determines whether the best are certain, and if not, the scores that the contract defines decide
// among all. Tokens are processed in chunks, so that memory is bounded.
#include "ops/residual_beam_search.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "detail/product_dtype.h"
#include "ops/any/beam_paths.h"

namespace torchvq {
namespace {

using detail::BeamCodes;
using detail::BeamPaths;
using detail::BeamProblem;

constexpr double kUnreachable = std::numeric_limits<double>::infinity();

/// Number of scores allocated at a time.
int64_t beam_scores_at_once(const at::Tensor& x) {
  return x.is_cpu() ? int64_t{1} << 21 : int64_t{1} << 25;
}

/// The contract's scores: residual columns d -> (n,), codes likewise; smaller is better.
template <typename Residual, typename Code>
at::Tensor exact_scores(int64_t dim, const at::Tensor& before, const BeamCodes& level,
                        const Residual& residual, const Code& code) {
  auto score = at::zeros_like(before);
  for (int64_t d = 0; d < dim; ++d) {
    const auto difference = residual(d).to(at::kDouble) - code(d).to(at::kDouble);
    score.add_(difference * difference);
  }
  if (level.adds) score = before + score * level.weight;
  return score.masked_fill_(score.isfinite().logical_not(), kUnreachable);
}

/// Flat extensions (t, count), best first, by the contract's scores of all extensions.
at::Tensor decide(const BeamPaths& paths, const BeamCodes& level, int64_t count) {
  const int64_t t = paths.score.size(0), w = paths.score.size(1), k = level.codes.size(0);
  const auto scores = exact_scores(
      level.codes.size(1), paths.score.unsqueeze(-1).expand({t, w, k}).contiguous(), level,
      [&](int64_t d) { return paths.residual.select(-1, d).unsqueeze(-1); },
      [&](int64_t d) { return level.columns.select(0, d); });
  const auto excluded = scores.masked_fill(level.excluded, kUnreachable).view({t, w * k});
  const std::optional<bool> stable = true;
  return std::get<1>(excluded.sort(stable, -1, /*descending=*/false)).narrow(-1, 0, count);
}

/// Flat extensions (t, count), and whether they are certain (t,).
std::tuple<at::Tensor, at::Tensor> screen(const BeamPaths& paths, const BeamCodes& level,
                                          int64_t count) {
  const detail::ScreenedBeam screened(paths, level);
  const int64_t all = screened.scores.size(1), taken = std::min(count + 1, all);
  const auto [values, places] = screened.scores.topk(taken, -1, /*largest=*/false);
  const auto chosen = places.narrow(-1, 0, count);
  const auto& error = screened.error;
  if (taken == count) return {chosen, at::ones_like(error, error.options().dtype(at::kBool))};
  const auto gap = values.select(-1, count) - values.select(-1, count - 1);
  return {chosen, gap.gt(error)};
}

/// The best `count` extensions of every token's paths, in lexicographic order.
BeamPaths extend(const BeamPaths& paths, const BeamCodes& level, int64_t count) {
  const int64_t t = paths.score.size(0), k = level.codes.size(0), dim = level.codes.size(1);
  auto [places, certain] = screen(paths, level, count);
  const auto open = certain.logical_not().nonzero().squeeze(-1);
  if (open.size(0) > 0) {
    const BeamPaths uncertain{
        paths.residual.index_select(0, open), paths.score.index_select(0, open), {}};
    places = places.index_copy(0, open, decide(uncertain, level, count));
  }
  places = std::get<0>(places.sort(-1));
  const auto parent = places.floor_divide(k), code = places.remainder(k);
  const auto wide_parent = parent.unsqueeze(-1).expand({t, count, dim});
  const auto residual = paths.residual.gather(1, wide_parent);
  const auto codes = level.codes.index_select(0, code.flatten()).view({t, count, dim});
  BeamPaths next;
  next.score = exact_scores(
      dim, paths.score.gather(1, parent), level, [&](int64_t d) { return residual.select(-1, d); },
      [&](int64_t d) { return codes.select(-1, d); });
  next.score.masked_fill_(level.excluded.index_select(0, code.flatten()).view({t, count}),
                          kUnreachable);
  next.residual = residual - codes;
  const int64_t before = paths.indices.size(2);
  const auto history = paths.indices.gather(1, parent.unsqueeze(-1).expand({t, count, before}));
  next.indices = at::cat({history, code.unsqueeze(-1)}, -1);
  return next;
}

at::Tensor search_chunk(const at::Tensor& x, const std::vector<BeamCodes>& levels, int64_t beam,
                        const detail::ExtendBeam& extend) {
  const auto absent = x.isfinite().all(-1).logical_not_();
  const int64_t t = x.size(0);
  BeamPaths paths;
  paths.residual = x.masked_fill(absent.unsqueeze(-1), 0).unsqueeze(1);
  paths.score = at::zeros({t, 1}, x.options().dtype(at::kDouble));
  paths.indices = at::empty({t, 1, 0}, x.options().dtype(at::kLong));
  for (size_t n = 0; n < levels.size(); ++n) {
    const int64_t all = paths.score.size(1) * levels[n].codes.size(0);
    paths = extend(paths, levels[n], n + 1 == levels.size() ? 1 : std::min(beam, all));
  }
  return paths.indices.squeeze(1).masked_fill(absent.unsqueeze(-1), 0);
}

at::Tensor residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights) {
  const BeamProblem problem("residual_beam_search", x, codebooks, beam, mask, depth, weights);
  const auto indices =
      problem.greedy() ? detail::greedy_search(problem) : detail::beam_search_any(problem);
  return detail::complete_beam_indices(problem, indices, mask);
}

}  // namespace

detail::BeamCodes::BeamCodes(const BeamProblem& problem, int64_t head, size_t n)
    : adds(!problem.weights.empty()) {
  codes = problem.codebooks[n].select(0, head);
  columns = codes.t().contiguous();
  excluded = codes.isfinite().all(-1).logical_not_();
  finite = codes.to(at::kDouble).masked_fill(excluded.unsqueeze(-1), 0);
  squares = finite.square().sum(-1);
  if (adds) weight = problem.weights[n];
}

detail::ScreenedBeam::ScreenedBeam(const BeamPaths& paths, const BeamCodes& level) {
  const int64_t t = paths.score.size(0), w = paths.score.size(1), k = level.codes.size(0);
  const auto wide = paths.residual.to(at::kDouble);
  const auto lengths = wide.square().sum(-1);
  auto all = at::matmul(wide, level.finite.t()).mul_(-2);
  all.add_(lengths.unsqueeze(-1)).add_(level.squares);
  if (level.adds) all.mul_(level.weight).add_(paths.score.unsqueeze(-1));
  all.masked_fill_(level.excluded, kUnreachable);
  all.masked_fill_(paths.score.isinf().unsqueeze(-1), kUnreachable);
  scores = all.view({t, w * k});

  auto magnitude = std::get<0>(lengths.max(-1)) + level.squares.max();
  if (level.adds) magnitude = magnitude * level.weight + std::get<0>(paths.score.max(-1));
  const double dim = static_cast<double>(level.codes.size(1));
  // Rounding of the product above and of the contract's own sum.
  error = (magnitude + 0x1p-900) * ((dim + 16) * 8 * 0x1p-53);
  if (!product_dtype(at::kDouble, wide.device())) error.fill_(kUnreachable);
}

at::Tensor detail::beam_search_any(const BeamProblem& problem) {
  return beam_search_by(problem, extend);
}

at::Tensor detail::beam_search_by(const BeamProblem& problem, const ExtendBeam& extend) {
  const auto used = static_cast<int64_t>(problem.codebooks.size());
  auto indices =
      at::empty({problem.heads, problem.tokens, used}, problem.x.options().dtype(at::kLong));
  int64_t paths = 1, widest = 1;
  for (const auto& codes : problem.codebooks) {
    widest = std::max(widest, paths * std::max(codes.size(1), problem.dim));
    paths = std::min(problem.beam, paths * codes.size(1));
  }
  const int64_t step = std::max<int64_t>(1, beam_scores_at_once(problem.x) / widest);
  for (int64_t head = 0; head < problem.heads && problem.tokens > 0; ++head) {
    std::vector<BeamCodes> levels;
    for (size_t n = 0; n < problem.codebooks.size(); ++n) levels.emplace_back(problem, head, n);
    for (int64_t begin = 0; begin < problem.tokens; begin += step) {
      const int64_t count = std::min(step, problem.tokens - begin);
      const auto part = problem.x.select(0, head).narrow(0, begin, count);
      indices.select(0, head)
          .narrow(0, begin, count)
          .copy_(search_chunk(part, levels, problem.beam, extend));
    }
  }
  return indices;
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_beam_search", residual_beam_search);
}

}  // namespace torchvq
