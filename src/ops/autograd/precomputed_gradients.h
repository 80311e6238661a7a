// Autograd of losses whose leaf operator returns the loss together with its gradients. Backward
// reads nothing that depends on the codebook: forward may have overwritten it, and a compiler would
// recompute such values from the new codebook (docs/design/estimators-and-losses.md).
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"

namespace torchvq::detail {

inline bool wants_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

/// A loss, and its gradients by x and by the codebook.
using LossAndGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// `Leaf` is called with flags for the wanted gradients and returns LossAndGradients.
struct PrecomputedGradients : torch::autograd::Function<PrecomputedGradients> {
  using Context = torch::autograd::AutogradContext;
  using variable_list = torch::autograd::variable_list;

  template <typename Leaf>
  static variable_list forward(Context* ctx, const std::optional<at::Tensor>& x,
                               const at::Tensor& codebook, const char* op,
                               std::array<bool, 2> wanted, const Leaf& leaf) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, grad_x, grad_codebook] = leaf(wanted);
    ctx->save_for_backward(
        {wanted[0] ? grad_x : at::Tensor(), wanted[1] ? grad_codebook : at::Tensor()});
    ctx->set_materialize_grads(false);
    ctx->saved_data["op"] = op;
    ctx->saved_data["x_dtype"] = static_cast<int64_t>(x.value_or(codebook).scalar_type());
    ctx->saved_data["codebook_dtype"] = static_cast<int64_t>(codebook.scalar_type());
    return {loss, grad_x, grad_codebook};
  }

  static variable_list backward(Context* ctx, const variable_list& upstream) {
    const auto& op = ctx->saved_data["op"].toStringRef();
    if (upstream[1].defined() || upstream[2].defined()) throw_twice_differentiated(op);
    check_once_differentiable(op.c_str());
    const auto saved = ctx->get_saved_variables();
    const auto scaled = [&](const at::Tensor& grad, const char* dtype) {
      if (!grad.defined() || !upstream[0].defined()) return at::Tensor();
      const auto target = static_cast<at::ScalarType>(ctx->saved_data[dtype].toInt());
      return (grad * upstream[0]).to(target);
    };
    return {scaled(saved[0], "x_dtype"), scaled(saved[1], "codebook_dtype"), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

/// The Autograd kernel of a `leaf`, `<op>_forward`, whose first result is the loss: below a level
/// of torch.func, the leaf is what calls meet. `wanted` are the gradients that the caller wants,
/// beside those of tensors that require one. Some losses have no `x`.
template <typename Leaf>
LossAndGradients leaf_with_precomputed_gradients(const char* op, const std::optional<at::Tensor>& x,
                                                 const at::Tensor& codebook,
                                                 std::array<bool, 2> wanted, const Leaf& leaf) {
  wanted[0] = wanted[0] || (x.has_value() && wants_gradient(*x));
  wanted[1] = wanted[1] || wants_gradient(codebook);
  const auto found = detail::differentiable<PrecomputedGradients>(x, codebook, op, wanted, leaf);
  return {found[0], found[1], found[2]};
}

}  // namespace torchvq::detail
