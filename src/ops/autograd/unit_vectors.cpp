#include <torchvq/ops/unit_vectors.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct UnitVectors : torch::autograd::Function<UnitVectors> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto units = ops::unit_vectors(x);
    ctx->save_for_backward({x, units});
    return units;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &units = saved[1];
    if (!at::GradMode::is_enabled()) {
      return {ops::unit_vectors_backward(grads[0], x, units).to(x.scalar_type())};
    }
    const auto norm = x.to(at::kDouble).norm(2, -1, /*keepdim=*/true).to(units.scalar_type());
    const auto along = units.mul(grads[0]).sum(-1, /*keepdim=*/true);
    const auto grad = grads[0].sub(units.mul(along)).div(norm);
    return {grad.masked_fill(norm.eq(0), 0).to(x.scalar_type())};
  }
};

at::Tensor unit_vectors(const at::Tensor& x) { return detail::differentiable<UnitVectors>(x); }

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("unit_vectors", unit_vectors); }

}  // namespace torchvq
