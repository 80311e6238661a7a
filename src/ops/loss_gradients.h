// Results of leaf operators that compute a loss together with its gradients, and the scale of
// gradients of mean squares.
#pragma once

#include <array>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

/// Buffers for the gradients of x (H, N, D) and codebook (H, K, D); without elements if not
/// wanted. They have the dtype of the loss and not of the arguments, because half precision
/// would lose small gradients.
struct LossGradients {
  at::Tensor x, codebook;

  LossGradients(const at::Tensor& x_, const at::Tensor& codebook_, std::array<bool, 2> wanted)
      : x(room(x_, wanted[0], value_dtype(x_, codebook_))),
        codebook(room(codebook_, wanted[1], value_dtype(x_, codebook_))) {}

  static at::Tensor room(const at::Tensor& like, bool wanted, at::ScalarType dtype) {
    const auto options = like.options().dtype(dtype);
    if (!wanted) return like.new_empty({0}, options);
    return like.new_empty_symint(like.sym_sizes(), options);
  }
};

/// A loss with its shape and dtype, for Meta kernels.
inline at::Tensor empty_loss(const at::Tensor& a, const at::Tensor& b) {
  return a.new_empty_symint(c10::SymIntArrayRef{}, a.options().dtype(value_dtype(a, b)));
}

/// Factor of differences in the gradient of commitment losses: upstream gradients times 2 / (number
/// of unmasked values). `mask` may be undefined. Without values there is nothing to scale.
inline at::Tensor commitment_gradient_scale(const at::Tensor& grad, const at::Tensor& x,
                                            const at::Tensor& mask) {
  if (!mask.defined()) {
    // Halving the count is exact, so one division gives the same number as twice the
    // gradient over the count.
    if (const auto count = x.sym_numel().maybe_as_int()) {
      return grad.div(static_cast<double>(*count) / 2);
    }
    return (grad * 2).div(at::Scalar(x.sym_numel()));
  }
  const auto count = (mask.sum() * at::Scalar(x.sym_size(2))).clamp_min(1);
  return grad * 2 / count;
}

}  // namespace torchvq::detail
