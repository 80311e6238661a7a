// Unit vectors, which the cosine metric compares.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Divides every row by its Euclidean length.
///
/// Formula   u[..., d] = x[..., d] / sqrt(sum_d x[..., d]^2)
///
/// @param x     (..., D), floating point, any strides.
/// @return      the shape of x; float32, or float64 for float64 input.
///
/// Gradient     (g - u (u . g)) / |x|; 0 for a zero row.
/// Ties         a zero row stays zero; a row with NaN becomes NaN, and one with an infinity is NaN there
///              and zero elsewhere.
/// Empty        an empty input gives an empty result.
/// Precision    squares are summed in float64 in index order and the quotient is rounded once, so
///              the bits do not depend on device, instruction set or threads: codebooks that learn
///              from unit vectors are the same on every machine.
/// Throws       c10::TypeError for a dtype that is not floating point, c10::ValueError for a
///              scalar.
TORCHVQ_API at::Tensor unit_vectors(const at::Tensor& x);

/// The backward of unit_vectors(): the gradient of the formula above for g = grad, in the dtype of units,
/// which are the result of unit_vectors(x) and have its shape, as grad has. Products are summed in
/// float64, and the gradient is rounded once.
TORCHVQ_API at::Tensor unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                             const at::Tensor& units);

}  // namespace torchvq::ops
