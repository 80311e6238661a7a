// Shared by all kernels of residual_decode: argument checks and dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

void check_residual_decode(const at::Tensor& indices, at::TensorList codebooks);

/// The dtype to which the dtypes of the codebooks promote.
at::ScalarType residual_decode_dtype(at::TensorList codebooks);

}  // namespace torchvq::detail
