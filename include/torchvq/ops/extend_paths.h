// One level of a beam search whose codes depend on the path (docs/design/residual-beam.md).
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Paths through the levels of a residual stack, w for each token.
struct ResidualPaths {
  at::Tensor residual;  ///< (H, T, w, D), what the path leaves of the token
  at::Tensor decoded;   ///< (H, T, w, D), the sum of the path's codes
  at::Tensor score;     ///< (H, T, w), float64
  at::Tensor indices;   ///< (H, T, w, levels so far), int64
};

/// The best extensions of every token's paths by a code of the next level.
///
/// Formula      An extension of path p by code c scores s = sum_d (residual_p,d - c_d)^2, with a
///              weight score_p + weight s. The `beam` extensions with the smallest scores are kept;
///              residual - c and decoded + c, each rounded once in their dtype.
/// Exact        s is a float64 sum over d in index order from 0 of the square of the float64
///              difference, nothing contracted: the score of `residual_beam_search`.
/// Ties         the lower path wins, then the candidate that stands first. So paths stay in
///              lexicographic order if candidates are in ascending order.
///
/// @param paths       see ResidualPaths; residual and decoded are float32 or float64, w >= 1.
/// @param codes       (H, T, w, C, D), the candidates of each path, floating point; they are
///                    converted to the dtype of the residual. C >= 1.
/// @param beam        at least 1: the paths to keep, at most w * C.
/// @param candidates  (H, T, w, C), int64: the candidates' indices. Default: 0 .. C - 1.
/// @param weight      of the squared residual, finite and non-negative. Default: none; the score
///                    is then s.
/// @return            min(beam, w * C) paths for each token, of one more level.
///
/// Gradient     none.
/// Non-finite   scores that are not finite count as infinity, so such extensions come last.
/// Empty        T == 0 gives empty results.
/// Memory       O(H T w C) beside the codes.
/// Throws       c10::ValueError for bad shapes, beam or weight, c10::TypeError for bad dtypes.
TORCHVQ_API ResidualPaths extend_paths(const ResidualPaths& paths, const at::Tensor& codes,
                                       int64_t beam,
                                       const std::optional<at::Tensor>& candidates = std::nullopt,
                                       std::optional<double> weight = std::nullopt);

}  // namespace torchvq::ops
