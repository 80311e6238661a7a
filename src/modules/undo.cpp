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

}  // namespace torchvq::detail
