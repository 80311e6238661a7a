#include "detail/once_differentiable.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {
namespace {

int64_t& transforms_of_backward() {
  static thread_local int64_t transforms = 0;
  return transforms;
}

}  // namespace

int64_t differentiating_transforms() {
  const auto& layers = at::functorch::getDynamicLayerStack();
  return std::count_if(layers.begin(), layers.end(), [](const auto& layer) {
    return layer.key() == at::functorch::TransformType::Grad ||
           layer.key() == at::functorch::TransformType::Jvp;
  });
}

BackwardOfTransforms::BackwardOfTransforms(int64_t transforms)
    : before_(std::exchange(transforms_of_backward(), transforms)) {}

BackwardOfTransforms::~BackwardOfTransforms() { transforms_of_backward() = before_; }

void check_once_differentiable(const char* op) {
  const bool twice = at::GradMode::is_enabled() && transforms_of_backward() != 1;
  TORCH_CHECK_NOT_IMPLEMENTED(!twice, op,
                              ": expected backward to run with create_graph=False, but got True; "
                              "the gradient of this operator has no derivative of its own");
}

}  // namespace torchvq::detail
