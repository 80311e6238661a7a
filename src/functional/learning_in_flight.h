// A training step of codebooks that is split into a start and an end, so that other work hides the
// communication between ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// learn_codebooks_() in two halves, for ranks that learn together in every step: the constructor
/// sends, finish() waits and completes the step. Between the two, states must not be written.
/// Destroying the object without finish() discards the step on this rank, without waiting.
class LearningInFlight {
 public:
  /// Throws as learn_codebooks_() does before it communicates. Tokens are copied, because the
  /// caller may overwrite them.
  LearningInFlight(std::vector<CodebookState> states, const std::vector<StepTokens>& tokens,
                   LearnCodebooksOptions options, const std::optional<at::Tensor>& weight);
  ~LearningInFlight();
  LearningInFlight(const LearningInFlight&) = delete;
  LearningInFlight& operator=(const LearningInFlight&) = delete;

  /// Returns and throws as learn_codebooks_() does, and advances the generators as
  /// finish_step_() would. Must be called exactly once, by all ranks in the same order
  /// relative to other collectives: it may need more of them, if tokens outgrew the codes or
  /// more codes died than expected.
  std::vector<at::Tensor> finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchvq::functional
