// The message of a training step that was started but not yet awaited.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/group.h"
#include "distributed/synced_code_statistics.h"
#include "distributed/synced_step_statistics.h"

namespace torchvq::distributed {

/// The content of a step's message; each codebook has one level.
struct StepMessage {
  std::vector<at::Tensor> x;          ///< (H, T, D)
  std::vector<at::Tensor> indices;    ///< (H, T)
  std::vector<at::Tensor> exponents;  ///< (H, K)
  SyncedStatisticsOptions options;    ///< with the generator, by which errors name the step
  /// Candidates for dead codes, if these are replaced; otherwise rng is empty.
  std::vector<at::Tensor> cluster_size = {};
  std::vector<at::Tensor> rng = {};
  double kept = 0;
  ops::DeadCodeOptions dead = {};
};

/// synced_step_statistics(), or synced_code_statistics() without candidates, in two halves. Both
/// halves read tokens, indices, masks and the generator, which must not be written in between.
class StepInFlight {
 public:
  /// Sends. Throws as synced_code_statistics() does before it communicates.
  explicit StepInFlight(StepMessage message);
  StepInFlight(const StepInFlight&) = delete;
  StepInFlight& operator=(const StepInFlight&) = delete;

  /// Waits; throws like synced_code_statistics(). Further collectives follow if tokens outgrew an
  /// exponent on some rank. Must be called once.
  StepStatistics receive();

 private:
  [[nodiscard]] at::Tensor offer() const;

  StepMessage message_;
  Group group_;
  StatisticsInFlight statistics_;
};

}  // namespace torchvq::distributed
