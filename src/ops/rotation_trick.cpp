#include <torchvq/ops/rotation_trick.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/rotation_trick.h"

namespace torchvq {

namespace detail {

void check_rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  check_same_tokens("rotation_trick", "x", x, "codes", codes);
}

void check_rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& codes) {
  check_same_tokens("rotation_trick_backward", "x", x, "codes", codes);
  check_same_tokens("rotation_trick_backward", "x", x, "grad", grad);
}

}  // namespace detail

namespace ops {

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&, const at::Tensor&)>(
      "torchvq::rotation_trick");
  return op.call(x, codes);
}

at::Tensor rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& codes) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);
  static auto op = detail::op_handle<Signature>("torchvq::rotation_trick_backward");
  return op.call(grad, x, codes);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("rotation_trick(Tensor x, Tensor codes) -> Tensor");
  m.def("rotation_trick_backward(Tensor grad, Tensor x, Tensor codes) -> Tensor");
}
