// Gradients that a forward or a fused kernel computes are constants for autograd: a second
// derivative would silently be zero. These functions raise an error instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// To be called in backward. Throws if the backward would be differentiated: under
/// create_graph=True, or in nested transforms of torch.func (grad, vjp, jacrev).
///
/// A single transform runs its backward with create_graph=True although a second derivative need
/// not follow. There the gradients pass through `no_second_derivative`, so that the error comes
/// when somebody differentiates them, be it inside the transform or outside.
void check_once_differentiable(const char* op);

/// Throws the error of an operator whose gradient has no derivative.
[[noreturn]] void throw_twice_differentiated(const std::string& op);

/// The number of nested torch.func transforms that differentiate.
int64_t differentiating_transforms();

/// `gradient`, as a function of `inputs` whose derivative throws the error of `op`, at each level
/// of torch.func. A copy.
at::Tensor no_second_derivative(const at::Tensor& gradient, at::TensorList inputs,
                                const std::string& op);

/// While an instance exists, this thread runs the backward of a forward under this many
/// transforms.
class BackwardOfTransforms {
 public:
  explicit BackwardOfTransforms(int64_t transforms);
  ~BackwardOfTransforms();
  BackwardOfTransforms(const BackwardOfTransforms&) = delete;
  BackwardOfTransforms& operator=(const BackwardOfTransforms&) = delete;
  BackwardOfTransforms(BackwardOfTransforms&&) = delete;
  BackwardOfTransforms& operator=(BackwardOfTransforms&&) = delete;

  /// The operator without a second derivative whose backward has run; none if all have one.
  const std::optional<std::string>& once_differentiable() const { return op_; }

 private:
  friend void check_once_differentiable(const char* op);

  int64_t transforms_;
  BackwardOfTransforms* before_;
  std::optional<std::string> op_;
};

}  // namespace torchvq::detail
