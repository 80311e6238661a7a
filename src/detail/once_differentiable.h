// Gradients that a forward computed, or a fused kernel computes, are constants to autograd: a
// second derivative would silently be zero. Say so instead.
#pragma once

namespace torchvq::detail {

/// Call in backward. Refuses to be differentiated itself: under create_graph=True, or where a
/// transform of torch.func (grad, vjp, jacrev) stands inside another one.
void check_once_differentiable(const char* op);

}  // namespace torchvq::detail
