// A step that fails leaves the codebooks and their counts as they were, where the caller's code or a
// message between two updates fails. An optimizer of their own keeps the moments of the step.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

/// When code of the caller runs in a step, besides the bridges of its levels; a message, which may
/// be lost, counts as such code only between updates.
enum class CallerCode { kNone, kBeforeUpdate, kBetweenUpdates };

/// What a step of these levels may have written when it fails, to return to: the counts of the last
/// step for stats(), and codebooks that are written before the last code of the caller runs.
class StepSnapshot {
 public:
  StepSnapshot(std::vector<VectorQuantizeImpl*> levels, CallerCode runs);
  void restore() const;

 private:
  struct Saved {
    at::Tensor state, value;
  };
  using Pending = std::optional<CodebookImpl::Statistics>;
  void save(CodebookImpl& codebook);

  std::vector<VectorQuantizeImpl*> levels_;
  std::vector<at::Tensor> uses_, replaced_;  // a step counts in new tensors
  std::vector<Saved> saved_;
  std::vector<std::pair<CodebookImpl*, Pending>> pending_;  // of the codebooks in saved_
};

/// The result of `step` of these levels; takes back what it has written if it throws. With ranks it
/// begins after their handshake, whose state all of them keep.
template <typename Step>
auto undone_if_it_fails(std::vector<VectorQuantizeImpl*> levels, const Step& step,
                        CallerCode runs = CallerCode::kNone) {
  const StepSnapshot before(std::move(levels), runs);
  try {
    return step();
  } catch (...) {
    before.restore();
    throw;
  }
}

}  // namespace torchvq::detail
