#include <torchvq/ops/token_moments.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

struct TokenMoments : torch::autograd::Function<TokenMoments> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto moments = ops::token_moments(x, mask);
    ctx->save_for_backward({x, moments, mask.value_or(at::Tensor())});
    return moments;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("token_moments");
    using Signature =
        at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&);
    static auto op = detail::op_handle<Signature>("torchvq::token_moments_backward");
    const auto saved = ctx->get_saved_variables();
    const auto mask = saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    return {op.call(grads[0], saved[0], saved[1], mask), at::Tensor()};
  }
};

at::Tensor token_moments(const at::Tensor& x, const OptionalTensor& mask) {
  return detail::differentiable<TokenMoments>(x, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("token_moments", token_moments); }

}  // namespace torchvq
