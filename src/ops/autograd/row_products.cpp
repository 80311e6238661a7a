#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/row_products.h>

#include "detail/differentiable.h"
#include "detail/without_autocast.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RowProducts : torch::autograd::Function<RowProducts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& matrix,
                            const at::Tensor& offset) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, matrix});
    return ops::row_products(x, matrix, offset);
  }

  /// No further row depends on a gradient, so these are torch's products.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const detail::WithoutAutocast without_autocast;
    const auto saved = ctx->get_saved_variables();
    const auto& grad = grads[0];
    variable_list result(3);
    if (ctx->needs_input_grad(0)) result[0] = grad.mm(saved[1].t());
    if (ctx->needs_input_grad(1)) result[1] = saved[0].t().mm(grad);
    if (ctx->needs_input_grad(2)) result[2] = grad.sum(0);
    return result;
  }
};

at::Tensor row_products(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& offset) {
  return detail::differentiable<RowProducts>(x, matrix, offset);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("row_products", row_products); }

}  // namespace torchvq
