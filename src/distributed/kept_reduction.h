// Reduction of accumulated statistics over ranks when they are due.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"
#include "distributed/kept_statistics.h"
#include "distributed/levels.h"
#include "distributed/synced_step_statistics.h"

namespace torchvq::distributed {

/// Positions in kKeptSteps.
inline constexpr int64_t kStepsKept = 0, kCallsKept = 1, kKeptBy = 3;

/// Outputs that the operator writes for each codebook; they are arguments because compilers accept
/// lists of tensors only as arguments.
enum Found : size_t { kFoundCounts, kFoundSums, kFoundExponents, kFoundCandidates, kFoundTensors };

/// The arguments of keep_statistics_().
struct KeepArguments {
  at::TensorList kept;
  at::TensorList found;
  Levels levels;
  at::TensorList indices;
  at::TensorList exponents;
  at::TensorList state;
  const at::Tensor& step;
  at::TensorList rng;
  at::TensorList cluster_size;
  int64_t every;
  bool replaces;
  double kept_size;
  double threshold;
  double threshold_fraction;
  bool unit;
  std::string_view signature;
  std::string_view reduction;

  [[nodiscard]] size_t size() const { return levels.size(); }
  [[nodiscard]] const at::Tensor& of(size_t c, Kept which) const {
    return kept[c * kKeptTensors + which];
  }
  [[nodiscard]] const at::Tensor& out(size_t c, Found which) const {
    return found[c * kFoundTensors + which];
  }
  /// Whether tokens are float64.
  [[nodiscard]] bool wide(size_t c) const { return levels.x[c].scalar_type() == at::kDouble; }
  /// The dtype in which tokens are compared, float32 or float64.
  [[nodiscard]] at::ScalarType rows(size_t c) const { return wide(c) ? at::kDouble : at::kFloat; }
  /// The candidates that ranks offer to each other.
  [[nodiscard]] OfferArguments offers(at::TensorList candidates) const {
    return {candidates,   exponents,           {},        rng,
            cluster_size, kept_size,           threshold, threshold_fraction,
            unit,         reduction == "exact"};
  }
};

/// The kept statistics of a codebook, including those of this call.
struct KeptSum {
  at::Tensor counts, sums;
  at::Tensor base, used;  ///< exponents of the first step, and current ones
  at::Tensor candidates;
};

/// The statistics of all ranks, or on a single rank its accumulated ones. `offered` is set to the
/// candidates of all ranks for dead codes.
SyncedStatistics reduce_kept(const Group& group, const KeepArguments& arguments,
                             const std::vector<KeptSum>& own, at::Tensor& offered);

}  // namespace torchvq::distributed
