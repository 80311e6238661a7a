// Whether code may look at the values of a tensor to choose the shorter of two ways to a result.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// True for a dense CPU tensor outside of compilers, traces and transforms: reading it waits for no
/// device, and no graph is recorded that would miss the other way.
bool is_readable(const at::Tensor& tensor);

/// Readable, and nothing looks at what is saved for backward: code may choose a graph that saves other
/// tensors. A checkpoint, whose recomputation may run under a mode that the forward did not, expects
/// the tensors of the forward.
bool may_shorten_graph(const at::Tensor& tensor);

/// Whether operations on the tensor are recorded for a gradient, backward or forward.
bool needs_gradient(const at::Tensor& tensor);

/// Readable, contiguous and without a gradient: code may read and copy the memory itself.
inline bool is_plain(const at::Tensor& tensor) {
  return is_readable(tensor) && tensor.is_contiguous() && !needs_gradient(tensor);
}

}  // namespace torchvq::detail
