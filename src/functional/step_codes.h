// The codes that a learning step reads and writes.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// Codes in the dtype of the state. Operators write float state; a half-precision
/// parameter gets the rounded codes.
class WideCodes {
 public:
  WideCodes(const std::vector<CodebookState>& states, const LearnCodebooksOptions& options)
      : states_(states) {
    for (const auto& state : states) {
      codes_.push_back(wide_embed(state, options.eps(), options.metric()));
    }
  }

  const std::vector<at::Tensor>& codes() const { return codes_; }

  /// Writes the codes of the first `count` codebooks.
  void store(size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      const auto& embed = states_[i].embed;
      if (embed.scalar_type() != codes_[i].scalar_type()) embed.detach().copy_(codes_[i]);
    }
  }

 private:
  const std::vector<CodebookState>& states_;
  std::vector<at::Tensor> codes_;
};

}  // namespace torchvq::functional
