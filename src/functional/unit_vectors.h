// Vectors scaled to unit length.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::functional {

/// (N, D), float32 -> (N, D), float32. The norm is a float64 sum in index order, as in
/// nearest_code(), so that no bit depends on the number of rows or threads; zero vectors stay zero.
at::Tensor unit_vectors(const at::Tensor& x);

}  // namespace torchvq::functional
