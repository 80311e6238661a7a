#include <torchvq/ops/directional_reparam.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DirectionalReparam : torch::autograd::Function<DirectionalReparam> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes,
                            const at::Tensor& noise, double variance) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, codes, noise});
    ctx->saved_data["variance"] = variance;
    return ops::directional_reparam(x, codes, noise, variance);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("directional_reparam");
    const auto saved = ctx->get_saved_variables();
    const auto [grad_x, grad_codes] = ops::directional_reparam_backward(
        grads[0], saved[0], saved[1], saved[2], ctx->saved_data["variance"].toDouble());
    return {grad_x, grad_codes, at::Tensor(), at::Tensor()};
  }
};

at::Tensor directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance) {
  return detail::differentiable<DirectionalReparam>(x, codes, noise, variance);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("directional_reparam", directional_reparam); }

}  // namespace torchvq
