#include "modules/undo.h"

#include <ATen/core/grad_mode.h>

namespace torchvq::detail {
namespace {

/// Whether a step may fail after it has written to the codebook. After the statistics of the affine
/// map, whose arguments are checked, this takes a function of the caller.
bool may_fail_late(const VectorQuantizeImpl& vq, CallerCode runs) {
  if (!vq.is_training()) return false;
  const auto& codebook = *vq.codebook_state;
  if (!codebook.initialised() || runs == CallerCode::kBetweenUpdates) return true;
  const bool calls_back = runs != CallerCode::kNone || !codebook.options.vq_bridge().is_empty();
  return codebook.options.affine_param() && calls_back;
}

}  // namespace

StepSnapshot::StepSnapshot(std::vector<VectorQuantizeImpl*> levels, CallerCode runs)
    : levels_(std::move(levels)) {
  const CodebookImpl* saved = nullptr;
  for (auto* level : levels_) {
    auto& codebook = *level->codebook_state;
    uses_.push_back(level->step_counts);
    replaced_.push_back(codebook.replaced);
    const bool shared = saved == &codebook;
    if (shared || !may_fail_late(*level, runs)) continue;
    save(codebook);
    saved = &codebook;
  }
}

void StepSnapshot::save(CodebookImpl& codebook) {
  const at::NoGradGuard no_grad;
  const auto keep = [&](const at::Tensor& state) {
    saved_.push_back({state.detach(), state.detach().clone()});
  };
  for (const auto& buffer : codebook.buffers(/*recurse=*/false)) keep(buffer);
  for (const auto& parameter : codebook.parameters(/*recurse=*/false)) keep(parameter);
  pending_.emplace_back(&codebook, codebook.pending());
}

void StepSnapshot::restore() const {
  const at::NoGradGuard no_grad;
  for (const auto& [state, value] : saved_) state.copy_(value);
  for (const auto& [codebook, pending] : pending_) codebook->after_undo(pending);
  for (size_t i = 0; i < levels_.size(); ++i) {
    levels_[i]->step_counts = uses_[i];
    levels_[i]->codebook_state->replaced = replaced_[i];
  }
}

}  // namespace torchvq::detail
