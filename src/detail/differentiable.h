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

#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/autograd/custom_function.h>

#include "detail/once_differentiable.h"

namespace torchvq::detail {

/// Suspends the transforms of this thread from construction until `resume`.
class TransformsHeldBack {
 public:
  TransformsHeldBack() : held_(std::move(at::functorch::functorchTLSAccessor())) {
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

  /// The instance of this thread; null unless `forward` is about to begin.
  static TransformsHeldBack*& innermost() {
    static thread_local TransformsHeldBack* instance = nullptr;
    return instance;
  }

 private:
  std::unique_ptr<at::functorch::FuncTorchTLSBase> held_;
};

/// `F` with a forward that first resumes the transforms.
template <typename F>
struct UnderTransforms : torch::autograd::Function<UnderTransforms<F>> {
  template <typename... Args>
  static auto forward(torch::autograd::AutogradContext* ctx, Args&&... args) {
    if (auto* held = TransformsHeldBack::innermost()) held->resume();
    ctx->saved_data[kTransforms] = differentiating_transforms();
    return F::forward(ctx, std::forward<Args>(args)...);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const BackwardOfTransforms scope(ctx->saved_data.at(kTransforms).toInt());
    return F::backward(ctx, gradients);
  }

 private:
  static constexpr auto kTransforms = "torchvq.transforms";
};

/// `F::apply`, for Autograd kernels.
template <typename F, typename... Args>
auto differentiable(Args&&... args) {
  if (!at::functorch::functorchTLSAccessor()) return F::apply(std::forward<Args>(args)...);
  TransformsHeldBack held;
  return UnderTransforms<F>::apply(std::forward<Args>(args)...);
}

}  // namespace torchvq::detail
