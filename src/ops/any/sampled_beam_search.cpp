// Every device: the operators that draw, and that extend paths, have kernels of their own.
#include "ops/sampled_beam_search.h"

#include <algorithm>

#include <torch/library.h>

#include <torchvq/ops/extend_paths.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/sample_codes.h>

#include "ops/residual_beam_search.h"
#include "ops/residual_paths.h"

namespace torchvq {
namespace {

using ops::ResidualPaths;

/// Numbers in the candidates of a chunk of tokens.
constexpr int64_t kCandidateNumbers = int64_t{1} << 22;

/// Extends the paths by candidates (H, T, w, C) of a level.
ResidualPaths extend_by(const ResidualPaths& paths, const at::Tensor& codebook,
                        const at::Tensor& candidates, int64_t beam, std::optional<double> weight) {
  const int64_t width = candidates.size(2), count = candidates.size(3), dim = codebook.size(2);
  const int64_t numbers = std::max<int64_t>(1, candidates.size(0) * width * count * dim);
  const int64_t step = std::max<int64_t>(1, kCandidateNumbers / numbers);
  return detail::extend_in_blocks(paths, step, [&](const ResidualPaths& block, int64_t begin) {
    const auto drawn = candidates.narrow(1, begin, block.score.size(1));
    const auto codes = ops::lookup_codes(codebook, drawn.flatten(1));
    return ops::extend_paths(block, codes.unflatten(1, drawn.sizes().slice(1)), beam, drawn,
                             weight);
  });
}

at::Tensor sampled_beam_search(const at::Tensor& x, at::TensorList codebooks, at::TensorList rngs,
                               int64_t beam, double temperature, c10::string_view metric,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& depth,
                               at::ArrayRef<double> weights) {
  detail::check_sampled_beam_search(x, codebooks, rngs, beam, temperature, metric, mask, depth,
                                    weights);
  const detail::BeamProblem problem("sampled_beam_search", x, codebooks, beam, mask, depth,
                                    weights);
  auto paths = detail::first_paths(problem.x);
  for (size_t n = 0; n < problem.codebooks.size(); ++n) {
    const auto& codebook = problem.codebooks[n];
    const int64_t width = paths.score.size(2), drawn = std::min(beam, codebook.size(1));
    const auto candidates =
        ops::sample_codes(paths.residual.flatten(1, 2), codebook, rngs[n], temperature, metric,
                          /*stream=*/0, drawn)
            .view({problem.heads, problem.tokens, width, drawn});
    const bool last = n + 1 == problem.codebooks.size();
    paths = extend_by(paths, codebook, std::get<0>(candidates.sort(-1)), last ? 1 : beam,
                      problem.weights.empty() ? std::nullopt : std::optional(problem.weights[n]));
  }
  return detail::complete_beam_indices(problem, paths.indices.squeeze(2), mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sampled_beam_search", sampled_beam_search);
}

}  // namespace torchvq
