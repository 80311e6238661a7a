// The convolution of the tokens of a scale before they are interpolated, as a product.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace torchvq::functional {

/// Throws c10::ValueError unless spread_scale() can convolve maps of so many features and axes.
void check_convolution(const char* op, const at::Tensor& weight, const at::Tensor& bias,
                       const c10::SymInt& features, size_t axes, double ratio);

/// A convolution as the product that tokens take before they are interpolated: for ratio r the
/// weight times r, and 1 - r times the token itself in the middle tap; the bias times r there, too.
struct SpreadProduct {
  at::Tensor matrix;  ///< (D, taps * D)
  at::Tensor offset;  ///< (taps * D,)
};

/// Of a weight (D, D, *kernel) and a bias (D,) of one dtype; differentiable.
SpreadProduct spread_product(const at::Tensor& weight, const at::Tensor& bias, double ratio);

/// The gradients of a weight of these sizes, and of its bias, from those of the product.
SpreadProduct spread_product_backward(const SpreadProduct& grads, at::IntArrayRef sizes,
                                      double ratio);

/// The map (B, D, *full) of tokens (B, L, D) of a grid.
at::Tensor spread_tokens(const at::Tensor& tokens, at::IntArrayRef size, c10::SymIntArrayRef full,
                         const SpreadProduct& product, at::IntArrayRef kernel);

}  // namespace torchvq::functional
