#include "modules/undo.h"

#include <ATen/core/grad_mode.h>

namespace torchvq::detail {

bool may_fail_late(const CodebookImpl& codebook, const Request& request) {
  return request.transform && (codebook.options.affine_param() || !codebook.initialised());
}

CodebookSnapshot::CodebookSnapshot(const CodebookImpl& codebook) {
  const at::NoGradGuard no_grad;
  const auto save = [&](const at::Tensor& state) {
    saved_.push_back({state.detach(), state.detach().clone()});
  };
  for (const auto& buffer : codebook.buffers(/*recurse=*/false)) save(buffer);
  for (const auto& parameter : codebook.parameters(/*recurse=*/false)) save(parameter);
}

void CodebookSnapshot::restore() const {
  const at::NoGradGuard no_grad;
  for (const auto& [state, value] : saved_) state.copy_(value);
}

StepCounts::StepCounts(std::vector<VectorQuantizeImpl*> levels) : levels_(std::move(levels)) {
  for (const auto* level : levels_) {
    uses_.push_back(level->step_counts);
    replaced_.push_back(level->codebook_state->replaced);
  }
}

void StepCounts::restore() const {
  for (size_t i = 0; i < levels_.size(); ++i) {
    levels_[i]->step_counts = uses_[i];
    levels_[i]->codebook_state->replaced = replaced_[i];
  }
}

}  // namespace torchvq::detail
