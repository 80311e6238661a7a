// Calls an autograd function from an Autograd kernel, under the transforms of torch.func as well.
//
// `Function::apply` refuses to run under torch.func (grad, vjp, jacrev), because a call that
// bypasses the dispatcher would silently be differentiated at the wrong level. The functions here
// are called only by Autograd kernels: the dispatcher has entered a level before it calls the
// kernel, and the operators that `forward` calls go through it to the next level. Only the check
// stands in the way, so it is disabled until `forward` begins.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "detail/once_differentiable.h"

namespace torchvq::detail {

/// Suspends the transforms of this thread from construction until `resume`.
class TransformsHeldBack {
 public:
  TransformsHeldBack()
      : held_(std::move(at::functorch::functorchTLSAccessor())),
        records_(at::GradMode::is_enabled()) {
    innermost() = this;
  }
  ~TransformsHeldBack() { resume(); }
  TransformsHeldBack(const TransformsHeldBack&) = delete;
  TransformsHeldBack& operator=(const TransformsHeldBack&) = delete;
  TransformsHeldBack(TransformsHeldBack&&) = delete;
  TransformsHeldBack& operator=(TransformsHeldBack&&) = delete;

  void resume() {
    if (innermost() != this) return;
    innermost() = nullptr;
    at::functorch::functorchTLSAccessor() = std::move(held_);
  }

  /// Whether the caller records gradients, which `Function::apply` turns off for its forward.
  bool records() const { return records_; }

  /// The instance of this thread; null unless `forward` is about to begin.
  static TransformsHeldBack*& innermost() {
    static thread_local TransformsHeldBack* instance = nullptr;
    return instance;
  }

 private:
  std::unique_ptr<at::functorch::FuncTorchTLSBase> held_;
  bool records_;
};

/// `F` with a forward that first resumes the transforms.
///
/// The level of this call is recorded by `F`, those below it by the operators that `F::forward`
/// calls, and they record only if gradients are on.
template <typename F>
struct UnderTransforms : torch::autograd::Function<UnderTransforms<F>> {
  template <typename... Args>
  static auto forward(torch::autograd::AutogradContext* ctx, Args&&... args) {
    auto* held = TransformsHeldBack::innermost();
    const bool records = held != nullptr && held->records();
    if (held != nullptr) held->resume();
    ctx->saved_data[kTransforms] = differentiating_transforms();
    ctx->saved_data[kInputs] = inputs_of(args...);
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::AutoGradMode mode(records);
    return F::forward(ctx, std::forward<Args>(args)...);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const BackwardOfTransforms scope(ctx->saved_data.at(kTransforms).toInt());
    auto result = F::backward(ctx, gradients);
    if (!scope.once_differentiable()) return result;
    const auto inputs = ctx->saved_data.at(kInputs).toTensorVector();
    for (auto& own : result) {
      if (own.defined()) own = no_second_derivative(own, inputs, *scope.once_differentiable());
    }
    return result;
  }

 private:
  static constexpr auto kTransforms = "torchvq.transforms";
  static constexpr auto kInputs = "torchvq.inputs";

  template <typename... Args>
  static torch::autograd::variable_list inputs_of(const Args&... args) {
    std::vector<bool> is_variable;
    torch::autograd::variable_list inputs;
    torch::autograd::extract_vars(is_variable, inputs, args...);
    return inputs;
  }
};

/// `F::apply`, for Autograd kernels.
template <typename F, typename... Args>
auto differentiable(Args&&... args) {
  if (!at::functorch::functorchTLSAccessor()) return F::apply(std::forward<Args>(args)...);
  TransformsHeldBack held;
  return UnderTransforms<F>::apply(std::forward<Args>(args)...);
}

}  // namespace torchvq::detail
