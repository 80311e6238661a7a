#include <torchvq/ops/rotation_trick.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RotationTrick : torch::autograd::Function<RotationTrick> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // codes are outputs of a leaf operator, so compilers save them and never recompute them.
    ctx->save_for_backward({x, codes});
    return ops::rotation_trick(x, codes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("rotation_trick");
    const auto saved = ctx->get_saved_variables();
    return {ops::rotation_trick_backward(grads[0], saved[0], saved[1]), at::Tensor()};
  }
};

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  return detail::differentiable<RotationTrick>(x, codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("rotation_trick", rotation_trick); }

}  // namespace torchvq
