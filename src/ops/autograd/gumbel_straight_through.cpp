#include <torchvq/ops/gumbel_straight_through.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torchvq/ops/snapshot.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GumbelStraightThrough : torch::autograd::Function<GumbelStraightThrough> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codebook,
                            const at::Tensor& indices, double temperature,
                            const std::string& metric, bool wants_gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // The codebook may be overwritten before backward, so backward uses a copy. Forward uses
    // the copy as well: a compiler computes values that only backward needs in backward, from
    // the overwritten codebook.
    const auto codes = wants_gradient ? ops::snapshot(codebook) : codebook;
    // Users may write to the indices that they receive.
    if (wants_gradient) ctx->save_for_backward({x, codes, indices.clone()});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["metric"] = metric;
    return ops::gumbel_straight_through(x, codes, indices, temperature, metric);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("gumbel_straight_through");
    const auto saved = ctx->get_saved_variables();
    const std::array<bool, 2> wanted{ctx->needs_input_grad(0), ctx->needs_input_grad(1)};
    const auto [grad_x, grad_codebook] = ops::gumbel_straight_through_backward(
        grads[0], saved[0], saved[1], saved[2], ctx->saved_data["temperature"].toDouble(),
        ctx->saved_data["metric"].toStringRef(), wanted);
    return {wanted[0] ? grad_x : at::Tensor(),
            wanted[1] ? grad_codebook : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                   const at::Tensor& indices, double temperature,
                                   c10::string_view metric) {
  const bool wants_gradient =
      at::GradMode::is_enabled() && (x.requires_grad() || codebook.requires_grad());
  return detail::differentiable<GumbelStraightThrough>(x, codebook, indices, temperature,
                                                       std::string(metric), wants_gradient);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("gumbel_straight_through", gumbel_straight_through);
}

}  // namespace torchvq
