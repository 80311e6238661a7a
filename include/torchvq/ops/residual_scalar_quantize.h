// A residual stack of finite scalar quantizers in one pass.
#pragma once

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Each level quantizes the residual of the levels before, at its own scale.
///
/// Formula      r_0 = x; q_n = scales[n] Q(r_n / scales[n]); r_{n+1} = r_n - q_n; quantized = q_0 +
///              q_1 + ..., where Q is scalar_quantize() with this bound
///
/// @param x       (*, D), floating point, any strides.
/// @param levels  D numbers, see scalar_quantize(), each in [2, 65536].
/// @param scales  (Q, D), floating point, Q at least 1.
/// @param bound   "symmetric_tanh" or "symmetric_clamp".
/// @return        quantized (*, D), float64 for float64 x, otherwise float32; indices (*, Q),
///                int64.
///
/// Gradient     of quantized to x: as without rounding, 1 - (1 - g_0) (1 - g_1) ..., with g_n the
///              slope of the bound of level n. Not differentiable again.
/// Exactness    the numbers of Q calls of scalar_quantize(): the same bits on every device and for
///              every instruction set.
/// Non-finite   a row with NaN or infinity is NaN and has indices 0; the gradient looks at each feature
///              alone.
/// Empty        gives empty results.
/// Throws       c10::ValueError for bad shapes, levels and bounds, c10::TypeError for bad dtypes.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> residual_scalar_quantize(
    const at::Tensor& x, at::IntArrayRef levels, const at::Tensor& scales,
    const std::string& bound = "symmetric_clamp");

}  // namespace torchvq::ops
