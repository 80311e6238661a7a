#include <torchvq/ops/straight_through.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/straight_through.h"

namespace torchvq {

namespace detail {

void check_straight_through(const at::Tensor& x, const at::Tensor& codes) {
  check_same_tokens("straight_through", "x", x, "codes", codes);
}

}  // namespace detail

namespace ops {

at::Tensor straight_through(const at::Tensor& x, const at::Tensor& codes) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&, const at::Tensor&)>(
      "torchvq::straight_through");
  return op.call(x, codes);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) { m.def("straight_through(Tensor x, Tensor codes) -> Tensor"); }
