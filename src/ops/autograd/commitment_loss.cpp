#include <torchvq/ops/commitment_loss.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "ops/autograd/commitment_gradients.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CommitmentLoss : torch::autograd::Function<CommitmentLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes,
                            const std::optional<at::Tensor>& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // codes are outputs of a leaf operator, so compilers save them and never recompute them.
    ctx->save_for_backward({x, codes, mask.value_or(at::Tensor())});
    return ops::commitment_loss(x, codes, mask);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [grad_x, grad_codes] = detail::commitment_gradients(grads[0], saved[0], saved[1], saved[2],
                                                             ctx->needs_input_grad(1));
    return {grad_x.to(saved[0].scalar_type()), grad_codes, at::Tensor()};
  }
};

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  return detail::differentiable<CommitmentLoss>(x, codes, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("commitment_loss", commitment_loss); }

}  // namespace torchvq
