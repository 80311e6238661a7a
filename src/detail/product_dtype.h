// The dtype in which matrix products round as the error bounds of the searches assume.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// `dtype` (float32 or float64) if its products are IEEE arithmetic; float64 if float32 products
/// may round their inputs (TensorFloat32, bfloat16) or are emulated; empty if float64 is emulated,
/// too. Users choose by torch.backends.*.fp32_precision and by cuBLAS's variables
/// CUBLAS_EMULATE_SINGLE_PRECISION and CUBLAS_EMULATE_DOUBLE_PRECISION.
std::optional<at::ScalarType> product_dtype(at::ScalarType dtype, at::Device device);

/// a.mm(b) in float32 or float64, never less precise than the dtype of `a`.
at::Tensor precise_mm(const at::Tensor& a, const at::Tensor& b);

}  // namespace torchvq::detail
