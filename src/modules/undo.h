// A step that fails in the caller's code leaves the codebook as it was.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/modules/codebook.h>

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

}  // namespace torchvq::detail
