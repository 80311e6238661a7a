#include <torchvq/ops/straight_through.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);  // without a gradient x gets none
    ctx->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return ops::straight_through(x, codes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {grads[0].to(dtype), at::Tensor()};
  }
};

at::Tensor straight_through(const at::Tensor& x, const at::Tensor& codes) {
  return detail::differentiable<StraightThrough>(x, codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("straight_through", straight_through); }

}  // namespace torchvq
