#include <torchvq/ops/sync_update_v.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/sync_update_v.h"

namespace torchvq {

namespace detail {

void check_sync_update_v(const at::Tensor& quantized, double v) {
  check_floating("sync_update_v", "quantized", quantized);
  check_non_negative("sync_update_v", "v", v);
}

}  // namespace detail

namespace ops {

at::Tensor sync_update_v(const at::Tensor& quantized, double v) {
  static auto op =
      detail::op_handle<at::Tensor(const at::Tensor&, double)>("torchvq::sync_update_v");
  return op.call(quantized, v);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("sync_update_v(Tensor quantized, *, float v) -> Tensor");
}
