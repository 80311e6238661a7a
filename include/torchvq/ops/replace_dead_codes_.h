// Dead codes: replaces codes that receive no tokens by tokens.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Options of replace_dead_codes_() and replace_with_candidates_().
struct DeadCodeOptions {
  /// Tokens per step, as a moving average, below which a code counts as dead. 0 replaces none.
  /// Default: 2.
  double threshold = 2;
  /// The threshold as a fraction of the mean cluster size, which does not depend on batch or
  /// codebook size; the larger of the two thresholds applies. Default: 0.
  double threshold_fraction = 0;
  /// Cluster size of a replaced code; at least the threshold is used. A larger value lets the code
  /// live longer without tokens. Default: 2. All three are in [0, 2^63].
  double reset_cluster_size = 2;
  /// "euclidean", or "cosine": tokens become codes as unit vectors, and zero tokens never become
  /// codes. Default: "euclidean".
  std::string metric = "euclidean";
  /// Whether codes with tokens in this step can be dead, as in vector-quantize-pytorch.
  /// Default: false.
  bool replace_used = false;
  /// Codes that a step replaces at most for each of its tokens (the sum of counts), rounded up, in
  /// [0, 2^63]. Default: no limit but the number of tokens.
  std::optional<double> most_per_token = std::nullopt;
};

/// Replaces dead codes by distinct tokens of the batch, drawn at random.
///
/// Formula      dead[k] = cluster_size[k] < threshold and (counts[k] == 0 or replace_used)
///              candidates: distinct usable tokens by rising key, key = hash(bits of the vector,
///              seed, step, head), without tokens that equal a live code. Dead codes take them in
///              the order of their index; if there are fewer candidates than dead codes, or fewer
///              may be replaced, a random part of the codes takes them and the rest stay. A
///              replaced code: embed = token, cluster_size = reset_cluster_size, embed_avg =
///              token * reset_cluster_size.
/// Paper        Zeghidour et al. 2021, SoundStream, arXiv:2107.03312, section III-C
///
/// @param embed         (H, K, D), float32 or float64; changed in place, like the next two.
/// @param embed_avg     (H, K, D), dtype of embed.
/// @param cluster_size  (H, K), dtype of embed.
/// @param x             (H, N, D), floating point: the tokens of this step.
/// @param counts        (H, K), int64: tokens of each code in this step (of all ranks).
/// @param rng           (2,), int64: (seed, step).
/// @param mask          (H, N) or (N,), bool, true for real tokens. Default: all.
/// @return              codes replaced per head, (H,), int64.
///
/// Gradient     none; autograd is told that the state changed.
/// Empty        N == 0 replaces nothing.
/// Non-finite   tokens with NaN or infinity are no candidates.
/// Determinism  does not depend on the order of tokens, nor, with the two functions below, on their
///              split over ranks.
/// Throws       c10::ValueError for bad shapes and options, c10::TypeError for bad dtypes. Nothing
///              is changed then.
TORCHVQ_API at::Tensor replace_dead_codes_(at::Tensor embed, at::Tensor embed_avg,
                                           at::Tensor cluster_size, const at::Tensor& x,
                                           const at::Tensor& counts, const at::Tensor& rng,
                                           const std::optional<at::Tensor>& mask = std::nullopt,
                                           const DeadCodeOptions& options = {});

/// The same for several codebooks, of any sizes and dtypes, each of which has an entry in every
/// list: the result of one call after the other. On a GPU up to 16 alike in dtype take the launches
/// of one. No codebook may occur twice.
///
/// @param mask  one for each codebook, or none: all tokens are real.
/// @return      codes replaced per head, codebook after codebook, int64.
TORCHVQ_API at::Tensor replace_dead_codes_(at::TensorList embed, at::TensorList embed_avg,
                                           at::TensorList cluster_size, at::TensorList x,
                                           at::TensorList counts, at::TensorList rng,
                                           at::TensorList mask = {},
                                           const DeadCodeOptions& options = {});

}  // namespace torchvq::ops
