#include <torchvq/ops/directional_reparam.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/directional_reparam.h"

namespace torchvq {

namespace detail {
namespace {

void check_reparam_inputs(const char* op, const at::Tensor& x, const at::Tensor& codes,
                          const at::Tensor& noise, double variance) {
  check_same_tokens(op, "x", x, "codes", codes);
  check_same_tokens(op, "x", x, "noise", noise);
  check_non_negative(op, "variance", variance);
}

}  // namespace

void check_directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance) {
  check_reparam_inputs("directional_reparam", x, codes, noise, variance);
}

void check_directional_reparam_backward(const at::Tensor& grad, const at::Tensor& x,
                                        const at::Tensor& codes, const at::Tensor& noise,
                                        double variance) {
  check_reparam_inputs("directional_reparam_backward", x, codes, noise, variance);
  check_same_tokens("directional_reparam_backward", "x", x, "grad", grad);
}

}  // namespace detail

namespace ops {

at::Tensor directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double);
  static auto op = detail::op_handle<Signature>("torchvq::directional_reparam");
  return op.call(x, codes, noise, variance);
}

std::tuple<at::Tensor, at::Tensor> directional_reparam_backward(const at::Tensor& grad,
                                                                const at::Tensor& x,
                                                                const at::Tensor& codes,
                                                                const at::Tensor& noise,
                                                                double variance) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, double);
  static auto op = detail::op_handle<Signature>("torchvq::directional_reparam_backward");
  return op.call(grad, x, codes, noise, variance);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("directional_reparam(Tensor x, Tensor codes, Tensor noise, *, float variance) -> Tensor");
  m.def(
      "directional_reparam_backward(Tensor grad, Tensor x, Tensor codes, Tensor noise, *, "
      "float variance) -> (Tensor, Tensor)");
}
