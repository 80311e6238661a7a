#include "ops/residual_scalar_quantize.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/residual_scalar_quantize.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef levels,
                          const at::Tensor& scales, std::string_view bound) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                               const at::Tensor&, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::residual_scalar_quantize_backward");
  return op.call(grad, x, levels, scales, bound);
}

struct ResidualScalarQuantize : torch::autograd::Function<ResidualScalarQuantize> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::IntArrayRef levels,
                               const at::Tensor& scales, std::string_view bound) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, scales});
    ctx->saved_data["levels"] = levels;
    ctx->saved_data["bound"] = std::string(bound);
    auto [quantized, indices] =
        ops::residual_scalar_quantize(x, levels, scales, std::string(bound));
    ctx->mark_non_differentiable({indices});
    ctx->set_materialize_grads(false);
    return {quantized, indices};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("residual_scalar_quantize");
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    const auto saved = ctx->get_saved_variables();
    return {input_gradient(grads[0], saved[0], ctx->saved_data["levels"].toIntVector(), saved[1],
                           ctx->saved_data["bound"].toStringRef()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> residual_scalar_quantize(const at::Tensor& x,
                                                            at::IntArrayRef levels,
                                                            const at::Tensor& scales,
                                                            std::string_view bound) {
  const auto outputs = detail::differentiable<ResidualScalarQuantize>(x, levels, scales, bound);
  return {outputs[0], outputs[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("residual_scalar_quantize", residual_scalar_quantize);
}

}  // namespace torchvq
