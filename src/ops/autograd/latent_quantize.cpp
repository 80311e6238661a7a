#include "ops/latent_quantize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/latent_quantize.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

struct LatentQuantize : torch::autograd::Function<LatentQuantize> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& values,
                               at::IntArrayRef levels, double commitment, double quantization,
                               const OptionalTensor& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto found = ops::latent_quantize(x, values, levels, commitment, quantization, mask);
    // Saves codes and not the values, which an optimizer may change before backward.
    ctx->save_for_backward({x, found.codes, found.indices.clone()});
    ctx->saved_data["levels"] = levels;
    ctx->saved_data["commitment"] = commitment;
    ctx->saved_data["quantization"] = quantization;
    ctx->saved_data["dtype"] = values.scalar_type();
    ctx->mark_non_differentiable({found.indices});
    ctx->set_materialize_grads(false);
    // Users may write to the results, so they get copies of saved tensors.
    return {found.codes.clone(), found.indices, found.loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("latent_quantize");
    using Signature = std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
        const at::Tensor&, at::IntArrayRef, double, double);
    static auto op = detail::op_handle<Signature>("torchvq::latent_quantize_backward");
    const auto saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const auto& codes = saved[1];
    const auto of_codes = grads[0].defined() ? grads[0] : at::zeros_like(codes);
    const auto of_loss = grads[2].defined() ? grads[2] : at::zeros({}, codes.options());
    const auto [grad_x, grad_values] =
        op.call(of_codes, of_loss, saved[0], codes, saved[2], data["levels"].toIntVector(),
                data["commitment"].toDouble(), data["quantization"].toDouble());
    return {grad_x,       grad_values.to(data["dtype"].toScalarType()),
            at::Tensor(), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_quantize(
    const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels, double commitment,
    double quantization, const OptionalTensor& mask) {
  const auto found =
      detail::differentiable<LatentQuantize>(x, values, levels, commitment, quantization, mask);
  return {found[0], found[1], found[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("latent_quantize", latent_quantize); }

}  // namespace torchvq
