// A step that fails leaves the codebook as it was, where the caller's code fails, and its counts.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// Whether the caller's function, which cannot be checked, runs after the step has written to the
/// codebook.
bool may_fail_late(const CodebookImpl& codebook, const Request& request);

/// The state of a codebook, to return to.
class CodebookSnapshot {
 public:
  explicit CodebookSnapshot(const CodebookImpl& codebook);
  void restore() const;

 private:
  struct Saved {
    at::Tensor state, value;
  };
  std::vector<Saved> saved_;
};

/// The result of `part` of a step; takes back what it has written to the codebook if it throws.
template <typename Part>
auto undone_if_it_fails(const CodebookImpl& codebook, const Part& part) {
  const CodebookSnapshot before(codebook);
  try {
    return part();
  } catch (...) {
    before.restore();
    throw;
  }
}

/// The counts of the last step for stats(), to return to. A step counts in new tensors.
class StepCounts {
 public:
  explicit StepCounts(std::vector<VectorQuantizeImpl*> levels);
  void restore() const;

 private:
  std::vector<VectorQuantizeImpl*> levels_;
  std::vector<at::Tensor> uses_, replaced_;
};

/// The result of `forward` of these levels; stats() stay those of the last step if it throws.
template <typename Forward>
auto counted_unless_it_fails(std::vector<VectorQuantizeImpl*> levels, const Forward& forward) {
  const StepCounts before(std::move(levels));
  try {
    return forward();
  } catch (...) {
    before.restore();
    throw;
  }
}

}  // namespace torchvq::detail
