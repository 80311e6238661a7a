#include <torchvq/ops/linear_nearest_code.h>

#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/add_rows.h"
#include "detail/differentiable.h"
#include "detail/op_handle.h"
#include "ops/linear_nearest_code.h"

namespace torchvq {

std::tuple<at::Tensor, at::Tensor> detail::linear_map_gradients(const at::Tensor& grad,
                                                                const at::Tensor& absent,
                                                                const at::Tensor& indices,
                                                                const at::Tensor& frozen) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                       const at::Tensor&, const at::Tensor&);
  static auto op = detail::op_handle<Signature>("torchvq::linear_nearest_code_backward");
  if (!at::GradMode::is_enabled()) return op.call(grad, absent, indices, frozen);
  // Uses differentiable operators.
  const auto rows = detail::gradient_rows(grad, absent, frozen);
  const auto of_codes = detail::add_rows(rows.unsqueeze(0), indices, frozen.sym_size(0))[0];
  return {of_codes.t().mm(frozen), rows.sum(0)};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearNearestCode : torch::autograd::Function<LinearNearestCode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& frozen,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [codes, indices] = ops::linear_nearest_code(x, frozen, weight, bias);
    // Users may write to what they receive.
    ctx->save_for_backward({codes.select(-1, 0).isnan(), indices.clone(), frozen});
    ctx->saved_data["bias"] = bias.has_value();
    ctx->mark_non_differentiable({indices});
    ctx->set_materialize_grads(false);
    return {codes, indices};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto none = at::Tensor();
    if (!grads[0].defined()) return {none, none, none, none};
    const auto saved = ctx->get_saved_variables();
    const auto [weight, bias] =
        detail::linear_map_gradients(grads[0], saved[0], saved[1], saved[2]);
    return {none, none, weight, ctx->saved_data["bias"].toBool() ? bias : none};
  }
};

std::tuple<at::Tensor, at::Tensor> linear_nearest_code(const at::Tensor& x,
                                                       const at::Tensor& frozen,
                                                       const at::Tensor& weight,
                                                       const std::optional<at::Tensor>& bias) {
  const auto found = detail::differentiable<LinearNearestCode>(x.detach(), frozen, weight, bias);
  return {found[0], found[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("linear_nearest_code", linear_nearest_code); }

}  // namespace torchvq
