// A training step of codebooks that ends later than it begins, so that something else hides what
// ranks tell each other.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// learn_codebooks_() in two halves, for ranks that learn together in every step: the constructor
/// sends, finish() waits and does the rest. In between the states stand as they were, and nobody
/// writes to them. To drop it is to forget the step on this rank: nothing is waited for.
class LearningInFlight {
 public:
  /// Throws as learn_codebooks_() does before it communicates. Tokens are copied, because their
  /// owner may write to them.
  LearningInFlight(std::vector<CodebookState> states, const std::vector<StepTokens>& tokens,
                   LearnCodebooksOptions options, const std::optional<at::Tensor>& weight);
  ~LearningInFlight();
  LearningInFlight(const LearningInFlight&) = delete;
  LearningInFlight& operator=(const LearningInFlight&) = delete;

  /// What learn_codebooks_() returns and throws; besides, the generators count the step, as
  /// finish_step_() has them do. To be called once, by all ranks in the same order among their
  /// collectives: some follow where tokens outgrew the codes, or more codes died than were foreseen.
  std::vector<at::Tensor> finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchvq::functional
