#include <string>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NoSecondDerivative : torch::autograd::Function<NoSecondDerivative> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gradient, at::TensorList inputs,
                            std::string_view op) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["op"] = std::string(op);
    return detail::no_second_derivative(gradient, inputs, std::string(op));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& /*grads*/) {
    detail::throw_twice_differentiated(ctx->saved_data["op"].toStringRef());
  }
};

at::Tensor no_second_derivative(const at::Tensor& gradient, at::TensorList inputs,
                                std::string_view op) {
  return detail::differentiable<NoSecondDerivative>(gradient, inputs, op);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("no_second_derivative", no_second_derivative); }

}  // namespace torchvq
