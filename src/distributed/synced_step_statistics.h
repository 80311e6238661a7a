// The single message of a training step that replaces dead codes: statistics and candidates.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/ops/replace_dead_codes_.h>

#include "distributed/offered_candidates.h"

namespace torchvq::distributed {

/// Inputs that determine the candidates, besides the tokens.
struct OfferOptions {
  at::TensorList cluster_size;  ///< per codebook (H, K), before the step
  at::TensorList rng;           ///< per codebook (2,)
  /// A lower bound on the share of the cluster size that a code without tokens keeps; 0 if unknown.
  double kept = 0;
  ops::DeadCodeOptions dead = {};
};

struct StepStatistics {
  SyncedStatistics statistics;
  at::Tensor offered;  ///< (W, n), int64, for synced_replace_dead_codes_(); n is 0 without room
};

/// synced_code_statistics(), and in the same all-reduce the candidates for dead codes of all ranks.
StepStatistics synced_step_statistics(at::TensorList x, at::TensorList indices,
                                      at::TensorList exponents,
                                      const SyncedStatisticsOptions& options,
                                      const OfferOptions& offer);

/// The shape of the offers of a codebook, from its tokens and a tensor (H, K).
OfferShape offer_shape(const at::Tensor& x, const at::Tensor& codes_of_heads);

/// The arguments that offers depend on. Each codebook has one level.
struct OfferArguments {
  at::TensorList x;
  at::TensorList exponents;  ///< (H, K): read for their shape
  at::TensorList mask;
  at::TensorList rng;
  at::TensorList cluster_size;
  double kept;
  double threshold;
  double threshold_fraction;
  bool unit;
  bool exact;
};

/// The offer of this rank, to be sent with the statistics.
at::Tensor own_offer(const OfferArguments& arguments, const Group& group);

/// The size of an offer; 0 without a group.
int64_t words_of_offer(const OfferArguments& arguments, const Group& group);

}  // namespace torchvq::distributed
