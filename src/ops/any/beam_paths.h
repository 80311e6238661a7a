// Parts of residual_beam_search shared by all implementations with tensor operators: the codes of a
// level, the paths of a chunk of tokens, and the screening scores of their extensions.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "ops/residual_beam_search.h"

namespace torchvq::detail {

/// The codes of one level and head.
struct BeamCodes {
  BeamCodes(const BeamProblem& problem, int64_t head, size_t n);

  at::Tensor codes;     ///< (K, D)
  at::Tensor columns;   ///< (D, K)
  at::Tensor finite;    ///< (K, D) float64, rows with a NaN or infinity set to zero
  at::Tensor excluded;  ///< (K,) bool, rows with a NaN or infinity
  at::Tensor squares;   ///< (K,) float64, squared norms
  double weight = 1;
  bool adds = false;  ///< whether the scores of the levels are summed
};

/// The paths of a chunk of t tokens, w for each, in lexicographic order.
struct BeamPaths {
  at::Tensor residual;  ///< (t, w, D)
  at::Tensor score;     ///< (t, w) float64
  at::Tensor indices;   ///< (t, w, levels so far)
};

/// Scores of all extensions, by a float64 product.
struct ScreenedBeam {
  ScreenedBeam(const BeamPaths& paths, const BeamCodes& level);

  at::Tensor scores;  ///< (t, w * K)
  /// (t,): bound on the sum of the errors of two scores against the contract's. Infinite where
  /// products are emulated, since their error has no bound.
  at::Tensor error;
};

/// The best `count` extensions of every token's paths, in lexicographic order.
using ExtendBeam =
    std::function<BeamPaths(const BeamPaths& paths, const BeamCodes& level, int64_t count)>;

/// Indices (H, T, levels in use), computed chunk by chunk and level by level.
at::Tensor beam_search_by(const BeamProblem& problem, const ExtendBeam& extend);

}  // namespace torchvq::detail
