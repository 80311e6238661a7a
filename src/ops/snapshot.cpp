#include <torchvq/ops/snapshot.h>

#include <torch/library.h>

#include "detail/op_handle.h"

namespace torchvq::ops {

at::Tensor snapshot(const at::Tensor& codebook) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&)>("torchvq::snapshot");
  return op.call(codebook);
}

}  // namespace torchvq::ops

TORCH_LIBRARY_FRAGMENT(torchvq, m) { m.def("snapshot(Tensor codebook) -> Tensor"); }
