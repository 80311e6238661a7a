#include "detail/once_differentiable.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/Exception.h>

#include "detail/op_handle.h"

namespace torchvq::detail {
namespace {

BackwardOfTransforms*& innermost() {
  static thread_local BackwardOfTransforms* instance = nullptr;
  return instance;
}

}  // namespace

int64_t differentiating_transforms() {
  const auto& layers = at::functorch::getDynamicLayerStack();
  return std::count_if(layers.begin(), layers.end(), [](const auto& layer) {
    return layer.key() == at::functorch::TransformType::Grad ||
           layer.key() == at::functorch::TransformType::Jvp;
  });
}

at::Tensor no_second_derivative(const at::Tensor& gradient, at::TensorList inputs,
                                const std::string& op) {
  using Signature = at::Tensor(const at::Tensor&, at::TensorList, std::string_view);
  static auto handle = op_handle<Signature>("torchvq::no_second_derivative");
  return handle.call(gradient, inputs, op);
}

BackwardOfTransforms::BackwardOfTransforms(int64_t transforms)
    : transforms_(transforms), before_(std::exchange(innermost(), this)) {}

BackwardOfTransforms::~BackwardOfTransforms() { innermost() = before_; }

void check_once_differentiable(const char* op) {
  if (!at::GradMode::is_enabled()) return;
  auto* scope = innermost();
  if (scope != nullptr && scope->transforms_ == 1) {
    scope->op_ = op;
    return;
  }
  throw_twice_differentiated(op);
}

void throw_twice_differentiated(const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                              ": expected backward to run with create_graph=False, but got True; "
                              "the gradient of this operator has no derivative of its own");
}

}  // namespace torchvq::detail
