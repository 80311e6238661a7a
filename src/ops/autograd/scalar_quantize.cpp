#include "ops/scalar_quantize.h"

#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/scalar_quantize.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef levels,
                          std::string_view bound) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_quantize_backward");
  return op.call(grad, x, levels, bound);
}

struct ScalarQuantize : torch::autograd::Function<ScalarQuantize> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::IntArrayRef levels,
                               std::string_view bound) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x});
    ctx->saved_data["levels"] = levels;
    ctx->saved_data["bound"] = std::string(bound);
    auto [codes, indices] = ops::scalar_quantize(x, levels, std::string(bound));
    ctx->mark_non_differentiable({indices});
    ctx->set_materialize_grads(false);
    return {codes, indices};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("scalar_quantize");
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    return {input_gradient(grads[0], ctx->get_saved_variables()[0],
                           ctx->saved_data["levels"].toIntVector(),
                           ctx->saved_data["bound"].toStringRef()),
            at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                                   std::string_view bound) {
  const auto outputs = detail::differentiable<ScalarQuantize>(x, levels, bound);
  return {outputs[0], outputs[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("scalar_quantize", scalar_quantize); }

}  // namespace torchvq
