// Statistics that are accumulated over steps (sync_every): each rank adds up the tokens of several
// training steps, and the ranks reduce them once.
//
// The sums are exact and independent of order: two words in units of 2^(e - 30), where e is the
// exponent of the code when the first of the steps began (2^(e - 62) for float64 tokens), so the
// result does not depend on how tokens are divided among steps and ranks. If no token exceeds
// 2^(e + 8), the integers are those that code_statistics() gives for all tokens. A token beyond
// 2^(e + 40) (float64: 2^(e + 8)) raises the exponent, as it does there, and the sums so far are
// rounded.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/synced_step_statistics.h"

namespace torchvq::distributed {

/// The tensors that a codebook accumulates between steps.
enum Kept : size_t {
  /// (4,), int64: number of kept steps, kept calls and reductions so far, and the rank that keeps
  /// them. All but the last are the same on all ranks.
  kKeptSteps,
  kKeptCounts,      ///< (H, K), int64
  kKeptSums,        ///< (2, H, K, D), int64
  kKeptExponents,   ///< (2, H, K), int32: those of the first step, and those in use
  kKeptCandidates,  ///< (H, K, 1 + D): tokens that may replace dead codes, each behind a 1, zeros
                    ///< where there are fewer; (H, 0, 1 + D) where codes are not replaced
  kKeptTensors,
};

/// Position of the number of reductions in kKeptSteps.
constexpr int64_t kKeptReductions = 2;

struct KeptStatisticsOptions {
  /// Steps that are reduced together, at least 2; 0: this call is not a step of its own, and
  /// reduces nothing.
  int64_t every = 2;
  /// Whether candidates for dead codes are kept; `offer` says what they depend on.
  bool replaces = false;
};

struct KeptStatistics {
  /// Of the kept steps, over all ranks, with two words each; zeros if they are not due.
  SyncedStatistics statistics;
  std::vector<at::Tensor> candidates;  ///< (H, K, D) of this rank, NaN where there are fewer, and
                                       ///< where they wait
  at::Tensor offered;                  ///< as in StepStatistics
  at::Tensor due;                      ///< (), bool: the kept steps are reduced in this call
};

/// Adds tokens (one tensor per codebook) to the accumulated statistics, and reduces them if they
/// are due: one all-reduce, two more if tokens are far larger than the codes.
///
/// @param kept   kKeptTensors tensors per codebook, changed in place.
/// @param offer  `rng` is that of the whole window: (seed, number of the reduction).
KeptStatistics keep_statistics_(at::TensorList kept, at::TensorList x, at::TensorList indices,
                                at::TensorList exponents, const SyncedStatisticsOptions& options,
                                const OfferOptions& offer, const KeptStatisticsOptions& keep);

}  // namespace torchvq::distributed
