// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/extend_paths.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

/// (H, T, w, C) float64.
at::Tensor extension_scores(const at::Tensor& residual, const at::Tensor& before,
                            const at::Tensor& codes, std::optional<double> weight) {
  auto score = at::zeros(codes.sizes().slice(0, 4), before.options());
  for (int64_t d = 0; d < codes.size(4); ++d) {
    const auto left = residual.select(-1, d).to(at::kDouble).unsqueeze(-1);
    const auto difference = left - codes.select(-1, d).to(at::kDouble);
    score.add_(difference * difference);
  }
  if (weight) score = before.unsqueeze(-1) + score * *weight;
  return score.masked_fill_(score.isfinite().logical_not_(),
                            std::numeric_limits<double>::infinity());
}

/// Rows (H, T, count, n) of `values` (H, T, m, n) at places (H, T, count).
at::Tensor rows_at(const at::Tensor& values, const at::Tensor& places) {
  const auto wide =
      places.unsqueeze(-1).expand({places.size(0), places.size(1), places.size(2), values.size(3)});
  return values.gather(2, wide);
}

detail::PathTensors extend_paths(const at::Tensor& residual, const at::Tensor& decoded,
                                 const at::Tensor& score, const at::Tensor& indices,
                                 const at::Tensor& codes_, int64_t beam,
                                 const std::optional<at::Tensor>& candidates,
                                 std::optional<double> weight) {
  detail::check_extend_paths(residual, decoded, score, indices, codes_, beam, candidates, weight);
  const auto codes = codes_.to(residual.scalar_type());
  const int64_t count = codes.size(3);
  const int64_t width = std::min(beam, codes.size(2) * count);
  const auto scores = extension_scores(residual, score, codes, weight).flatten(2);
  const std::optional<bool> stable = true;
  const auto best = std::get<1>(scores.sort(stable, -1, /*descending=*/false));
  const auto places = std::get<0>(best.narrow(-1, 0, width).sort(-1));
  const auto parents = places.floor_divide(count);
  const auto chosen = rows_at(codes.flatten(2, 3), places);
  const auto index =
      candidates ? candidates->flatten(2).gather(-1, places) : places.remainder(count);
  return {rows_at(residual, parents) - chosen, rows_at(decoded, parents) + chosen,
          scores.gather(-1, places), at::cat({rows_at(indices, parents), index.unsqueeze(-1)}, -1)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("extend_paths", extend_paths); }

}  // namespace torchvq
