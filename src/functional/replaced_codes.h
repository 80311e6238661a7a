// The codes that a step replaces, counted apart from the state until nothing can fail any more: a
// call that is refused leaves the count of the step before.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

class ReplacedCodes {
 public:
  /// @param learns  whether the step may replace codes.
  ReplacedCodes(std::vector<CodebookState> states, bool learns)
      : learns_(learns), states_(std::move(states)) {
    for (auto& state : states_) {
      kept_.push_back(state.replaced);
      if (learns) state.replaced = at::zeros_like(state.replaced);
    }
  }

  /// The states to learn with.
  [[nodiscard]] const std::vector<CodebookState>& states() const { return states_; }

  /// Writes the counts of the step.
  void finish() const {
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (learns_) {
        kept_[i].copy_(states_[i].replaced);
      } else {
        kept_[i].zero_();
      }
    }
  }

 private:
  bool learns_;
  std::vector<CodebookState> states_;
  std::vector<at::Tensor> kept_;
};

}  // namespace torchvq::functional
