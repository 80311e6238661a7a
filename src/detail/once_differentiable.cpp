#include "detail/once_differentiable.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {
namespace {

/// How many transforms of torch.func that differentiate are running, one inside the other.
int64_t differentiating_transforms() {
  const auto& layers = at::functorch::getDynamicLayerStack();
  return std::count_if(layers.begin(), layers.end(), [](const auto& layer) {
    return layer.key() == at::functorch::TransformType::Grad ||
           layer.key() == at::functorch::TransformType::Jvp;
  });
}

}  // namespace

void check_once_differentiable(const char* op) {
  // A single transform runs its backward with create_graph=True, though nobody can ask for more.
  const bool twice = at::GradMode::is_enabled() && differentiating_transforms() != 1;
  TORCH_CHECK_NOT_IMPLEMENTED(!twice, op,
                              ": expected backward to run with create_graph=False, but got True; "
                              "the gradient of this operator has no derivative of its own");
}

}  // namespace torchvq::detail
