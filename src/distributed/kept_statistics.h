// Statistics that are accumulated over steps (sync_every): tokens of several training steps are
// added up on their rank, and reduced once.
//
// The sums are exact and do not depend on the order: two words in units of 2^(e - 30), where e is
// the exponent of the code when the first of the steps began (2^(e - 62) for float64 tokens), so
// the result does not depend on the split of tokens over steps and ranks. Where no token exceeds
// 2^(e + 8) these are the integers that code_statistics() of all tokens gives. A token beyond 2^(e
// + 40) (float64: 2^(e + 8)) raises the exponent, as it does there, and the sums so far are
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
  /// (4,), int64: steps that are kept, calls that are kept, reductions so far, and the rank that
  /// keeps. All but the last are the same on all ranks.
  kKeptSteps,
  kKeptCounts,      ///< (H, K), int64
  kKeptSums,        ///< (2, H, K, D), int64
  kKeptExponents,   ///< (2, H, K), int32: those of the first step, and those in use
  kKeptCandidates,  ///< (H, K, 1 + D): tokens that may replace dead codes, each behind a 1, zeros
                    ///< where there are fewer; (H, 0, 1 + D) where codes are not replaced
  kKeptTensors,
};

/// The place of the number of reductions in kKeptSteps.
constexpr int64_t kKeptReductions = 2;

struct KeptStatisticsOptions {
  /// Steps that are reduced together, at least 2; 0: this call is not a step of its own, and
  /// reduces nothing.
  int64_t every = 2;
  /// Whether candidates for dead codes are kept; `offer` says what they depend on.
  bool replaces = false;
};

struct KeptStatistics {
  /// Of the steps that were kept, of all ranks, with two words each; zeros where they wait.
  SyncedStatistics statistics;
  std::vector<at::Tensor> candidates;  ///< (H, K, D) of this rank, NaN where there are fewer, and
                                       ///< where they wait
  at::Tensor offered;                  ///< as in StepStatistics
  at::Tensor due;                      ///< (), bool: they do not wait
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
