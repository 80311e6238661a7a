// Dead codes: the two halves of their replacement. select_candidates() reads tokens and returns a
// fixed-size set with keys; sets of several ranks are concatenated on axis 1; replace_codes() reads
// only the (replicated) state and the merged set. So all ranks change their state in the same way
// as one process with all tokens.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The `count` distinct usable rows with the smallest keys: keys (H, count), int64, kNoKey where
/// there are fewer, and rows (H, count, D), zeros there. As many candidates as codes always
/// suffice, because a live code excludes at most one. With `unit`, zero rows are not candidates.
std::pair<at::Tensor, at::Tensor> select_candidates(const at::Tensor& x, const at::Tensor& rng,
                                                    int64_t count,
                                                    const std::optional<at::Tensor>& mask,
                                                    bool unit);

/// State changed by replace_codes(), see replace_dead_codes_().
struct DeadCodeState {
  const at::Tensor& embed;
  const at::Tensor& embed_avg;
  const at::Tensor& cluster_size;
};

/// Parameters that define dead codes, and the state that replaced codes get.
struct DeadCodeArguments {
  double threshold;
  double threshold_fraction;
  double reset_cluster_size;
  bool replace_used;
  std::optional<double> most_per_token = std::nullopt;
};

/// The dead codes of a step.
struct DeadCodes {
  at::Tensor limits;  ///< (H, 1), float64: the threshold, or the fraction of the mean cluster size
                      ///< where that is more
  at::Tensor dead;    ///< (H, K), bool: fewer tokens than that, and none in this step unless
                      ///< `replace_used`
};

DeadCodes find_dead_codes(const DeadCodeState& state, const at::Tensor& counts,
                          const DeadCodeArguments& arguments);

/// (H,) int64: how many of the dead codes a step with these counts replaces at most.
at::Tensor most_replaced(const at::Tensor& dead, const at::Tensor& counts,
                         const DeadCodeArguments& arguments);

/// (H,) bool: whether at least `most` candidates differ from every live code.
at::Tensor enough_candidates(const DeadCodeState& state, const at::Tensor& dead,
                             const at::Tensor& most, const at::Tensor& keys, const at::Tensor& rows,
                             const at::Tensor& rng);

/// Replaces at most `most` dead codes by the candidates that differ from every live code, in the
/// order of their keys; their cluster size is then reset_cluster_size, or their limit where that is
/// more. Returns replaced codes (H,).
at::Tensor replace_codes(const DeadCodeState& state, const DeadCodes& codes, const at::Tensor& most,
                         const at::Tensor& keys, const at::Tensor& rows, const at::Tensor& rng,
                         const DeadCodeArguments& arguments);

}  // namespace torchvq::detail
