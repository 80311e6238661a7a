// Whether a CUDA graph can record an operator. Inductor reads the tag and splits its graphs around
// operators that have it (torch.compile with mode="reduce-overhead"). A tag belongs to an operator
// and cannot depend on its arguments: code that waits only for other ranks is therefore a separate
// operator, which single-process steps do not call.
#pragma once

#include <vector>

#include <ATen/core/enum_tag.h>

#include <torchvq/cuda_kernels.h>

namespace torchvq::detail {

/// Tags of an operator that waits for the device with any kernel.
inline const std::vector<at::Tag>& waits() {
  static const std::vector<at::Tag> tags{at::Tag::cudagraph_unsafe};
  return tags;
}

/// Tags of an operator that searches. The any-device path asks the device how many rows are still
/// undecided; CUDA kernels, where the library has them, never ask.
inline const std::vector<at::Tag>& searches() {
#if TORCHVQ_WITH_CUDA
  static const std::vector<at::Tag> none;
  return none;
#else
  return waits();
#endif
}

}  // namespace torchvq::detail
