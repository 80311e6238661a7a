// Whether a CUDA graph can record an operator. Inductor reads the tag, and cuts its graphs around
// operators that have it (torch.compile with mode="reduce-overhead"). A tag is of the operator, whatever
// its arguments: what waits only with other ranks is an operator that steps of one process do not call.
#pragma once

#include <vector>

#include <ATen/core/enum_tag.h>

#include <torchvq/cuda_kernels.h>

namespace torchvq::detail {

/// Tags of an operator that waits for the device, whatever its kernels.
inline const std::vector<at::Tag>& waits() {
  static const std::vector<at::Tag> tags{at::Tag::cudagraph_unsafe};
  return tags;
}

/// Tags of an operator that searches. The plain path asks the device how many rows are left to
/// decide; CUDA kernels, where the library has them, ask nothing.
inline const std::vector<at::Tag>& searches() {
#if TORCHVQ_WITH_CUDA
  static const std::vector<at::Tag> none;
  return none;
#else
  return waits();
#endif
}

}  // namespace torchvq::detail
