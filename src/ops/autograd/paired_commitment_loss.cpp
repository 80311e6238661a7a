#include <torchvq/ops/paired_commitment_loss.h>

#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/op_handle.h"
#include "ops/paired_commitment_loss.h"

namespace torchvq {

std::tuple<at::Tensor, at::Tensor> detail::paired_gradients(const at::Tensor& grad,
                                                            const at::Tensor& x,
                                                            const at::Tensor& codes,
                                                            const std::optional<at::Tensor>& mask,
                                                            double to_x, double to_codes) {
  if (at::GradMode::is_enabled()) {
    return paired_gradients_any(grad, x, codes, mask, to_x, to_codes);
  }
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         const std::optional<at::Tensor>&, double, double);
  static auto op = op_handle<Signature>("torchvq::paired_commitment_loss_backward");
  return op.call(grad, x, codes, mask, to_x, to_codes);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

struct PairedCommitmentLoss : torch::autograd::Function<PairedCommitmentLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes,
                            const OptionalTensor& mask, double to_x, double to_codes) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, codes, mask.value_or(at::Tensor())});
    ctx->saved_data["to_x"] = to_x;
    ctx->saved_data["to_codes"] = to_codes;
    return ops::paired_commitment_loss(x, codes, mask, to_x, to_codes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto mask = saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    const auto none = at::Tensor();
    const auto [x, codes] = detail::paired_gradients(grads[0], saved[0], saved[1], mask,
                                                     ctx->saved_data["to_x"].toDouble(),
                                                     ctx->saved_data["to_codes"].toDouble());
    return {x, codes, none, none, none};
  }
};

at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const OptionalTensor& mask, double to_x, double to_codes) {
  return detail::differentiable<PairedCommitmentLoss>(x, codes, mask, to_x, to_codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("paired_commitment_loss", paired_commitment_loss);
}

}  // namespace torchvq
