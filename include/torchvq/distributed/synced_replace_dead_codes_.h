// Replaces dead codes by tokens of all ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>
#include <torchvq/ops/replace_dead_codes_.h>

namespace torchvq::distributed {

/// State of the codebooks of a stack, one tensor each per codebook; see ops/replace_dead_codes_.h
/// for shapes and dtypes.
struct CodebookStates {
  at::TensorList embed;
  at::TensorList embed_avg;
  at::TensorList cluster_size;
};

/// Options of synced_replace_dead_codes_().
struct SyncedDeadCodeOptions : SyncOptions {
  /// Masks (H, N) or (N,), true for real tokens: none, one for all levels, or one per level.
  /// Default: none.
  std::vector<at::Tensor> mask = {};
  /// Which codes are dead, and how they are replaced; the same for all codebooks.
  ops::DeadCodeOptions dead = {};
  /// Candidates of all ranks that came with the statistics of this step, from learn_codebooks_().
  /// Default: none.
  std::optional<at::Tensor> offered = std::nullopt;
  /// How the candidates were sent: "exact" or "float", see SyncedStatisticsOptions.
  std::string reduction = "exact";
  /// (), bool: false if the step is one of several that are reduced later; then nothing is replaced
  /// or sent. Default: true.
  std::optional<at::Tensor> due = std::nullopt;
};

/// replace_dead_codes_() with the tokens of all ranks as candidates, for all levels of a stack at
/// once.
///
/// Communication  none if no code is dead, or if the offered candidates are enough, by the
///                (replicated) state; otherwise one all-gather of K keys and K rows per rank for
///                each codebook with dead codes. The host reads the state, and on a GPU waits for
///                it; a group of one on a GPU does not.
///
/// @param x       per level (H, N, D), the tokens of this rank's step.
/// @param counts  per codebook (H, K), int64: tokens of each code in this step, of all ranks.
/// @param rng     per codebook (2,), int64: seed and step.
/// @return        number of replaced codes per head, codebook after codebook, int64.
///
/// Determinism  the bits of one process with the concatenated batch.
/// Throws       as replace_dead_codes_(); c10::DistBackendError where communication fails. Nothing
///              is changed then.
TORCHVQ_API at::Tensor synced_replace_dead_codes_(const CodebookStates& states, at::TensorList x,
                                                  at::TensorList counts, at::TensorList rng,
                                                  const SyncedDeadCodeOptions& options = {});

}  // namespace torchvq::distributed
