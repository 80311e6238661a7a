// Gradients that a forward computed, or a fused kernel computes, are constants to autograd: a
// second derivative would silently be zero. Say so instead.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {

/// Call in backward. Gradient mode is on there only under create_graph=True.
inline void check_once_differentiable(const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), op,
                              ": expected backward to run with create_graph=False, but got True; "
                              "the gradient of this operator has no derivative of its own");
}

}  // namespace torchvq::detail
