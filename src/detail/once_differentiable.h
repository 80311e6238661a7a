// Gradients that a forward computed, or a fused kernel computes, are constants to autograd: a
// second derivative would silently be zero. Say so instead.
#pragma once

#include <cstdint>

namespace torchvq::detail {

/// Call in backward. Refuses to be differentiated itself: under create_graph=True, or where a
/// transform of torch.func (grad, vjp, jacrev) stands inside another one.
void check_once_differentiable(const char* op);

/// How many transforms of torch.func that differentiate are running, one inside the other.
int64_t differentiating_transforms();

/// While one lives, a backward of a forward under so many transforms runs on this thread. A single
/// transform runs its backward with create_graph=True, though no second derivative can follow.
class BackwardOfTransforms {
 public:
  explicit BackwardOfTransforms(int64_t transforms);
  ~BackwardOfTransforms();
  BackwardOfTransforms(const BackwardOfTransforms&) = delete;
  BackwardOfTransforms& operator=(const BackwardOfTransforms&) = delete;
  BackwardOfTransforms(BackwardOfTransforms&&) = delete;
  BackwardOfTransforms& operator=(BackwardOfTransforms&&) = delete;

 private:
  int64_t before_;
};

}  // namespace torchvq::detail
