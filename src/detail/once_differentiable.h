// Gradients that a forward or a fused kernel computes are constants for autograd: a second
// derivative would silently be zero. These functions raise an error instead.
#pragma once

#include <cstdint>

namespace torchvq::detail {

/// To be called in backward. Throws if the backward would be differentiated: under
/// create_graph=True, or in nested transforms of torch.func (grad, vjp, jacrev).
void check_once_differentiable(const char* op);

/// The number of nested torch.func transforms that differentiate.
int64_t differentiating_transforms();

/// While an instance exists, this thread runs the backward of a forward under this many
/// transforms. A single transform runs its backward with create_graph=True although no
/// second derivative can follow.
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
