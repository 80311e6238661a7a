// Exponential moving averages of a codebook: running averages, Laplace smoothing, new codes, in one
// pass. ema_finish_() is the second half alone, for callers that update the averages now and the
// codes later.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Options of ema_update_().
struct EmaUpdateOptions {
  /// Decay of the averages, in [0, 1]. Larger is slower. `gamma` in the paper. Default: 0.8.
  double decay = 0.8;
  /// Laplace smoothing of the cluster sizes, finite, >= 0. A larger value pulls rare codes to the
  /// origin. Default: 1e-5.
  double eps = 1e-5;
  /// "euclidean", or "cosine": codes are made unit vectors at the end. Default: "euclidean".
  std::string metric = "euclidean";
  /// Multiplies 1 - decay: (), (K,), (1, K), (H, 1) or (H, K), floating point. Default: 1.
  std::optional<at::Tensor> weight = std::nullopt;
  /// True if something else (an optimizer) has changed the codes since the last update: the
  /// averages then start from the codes.
  bool from_codebook = false;
  /// False updates only the averages; ema_finish_() computes the codes later. Default: true.
  bool finish = true;
};

/// Updates the moving averages with one batch of statistics, and the codes from the averages.
///
/// Formula      w = (1 - decay) * weight
///              cluster_size += w * (counts - cluster_size);  embed_avg += w * (sums - embed_avg)
///              smoothed = (cluster_size + eps) / (total + K * eps) * total,
///              total = sum of cluster_size over the head;
///              embed = embed_avg / smoothed; cosine: embed /= ||embed||, a zero code stays zero;
///              from_codebook: first embed_avg = embed * smoothed, with the cluster sizes before
///              the update
/// Paper        van den Oord et al. 2017, arXiv:1711.00937, appendix A.1
/// Parity       vector-quantize-pytorch, class VectorQuantize, to 1e-6, except:
///              a faint code, one without tokens in this batch whose cluster_size has fallen
///              below min(3e-2, (1 - decay) / 2), keeps its place, and an unused one moves towards a
///              code with many tokens (in the reference both drift to the origin, because eps
///              outweighs the cluster size); a head without any token in this batch does not change.
/// Unused codes are faint, have a cluster_size below 1e-5, where the smoothing has halved the code of
///              the reference, and have waited for a token eight times as long as a code with an
///              equal share of total does, ceil(8 K / total) steps: their cluster_size is below that
///              of a code that had one token then. They move:
///              embed += 0.8 * clamp(weight, 0, 1) * (target - embed), cosine: made a unit vector;
///              the targets are the codes in use, sorted by cluster_size and then by index, one for
///              each unused code in the order of its index, and from the first again if there are
///              fewer. Near a code with many tokens, the unused code takes some of them, so the
///              two share these tokens. There is no random number and no message: all ranks do the
///              same.
///
/// @param cluster_size  (H, K), float32 or float64; changed in place, as are embed_avg and embed.
/// @param embed_avg     (H, K, D), dtype of cluster_size.
/// @param embed         (H, K, D), dtype of cluster_size.
/// @param counts        (H, K), int64, from code_statistics().
/// @param sums          (W, H, K, D), int64, from code_statistics(); for cosine, of unit tokens.
/// @param exponents     (H, K), int32, from code_statistics().
///
/// Gradient     none; autograd is told that the state changed.
/// Precision    computed in float64, each state element rounded once.
/// Determinism  the same bits for any thread count, instruction set and device: the total is added
///              in fixed point.
/// Throws       c10::ValueError for bad shapes, options and (on CPU) weights that are not finite,
///              c10::TypeError for bad dtypes; half-precision state is one of them. Nothing is
///              changed when an error is thrown.
TORCHVQ_API void ema_update_(at::Tensor cluster_size, at::Tensor embed_avg, at::Tensor embed,
                             const at::Tensor& counts, const at::Tensor& sums,
                             const at::Tensor& exponents, const EmaUpdateOptions& options = {});

}  // namespace torchvq::ops
