// The factor of an affine map.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::functional {

/// (H, 1, D): the deviation of the data over that of the codes, neither of which vanishes.
at::Tensor affine_scale(const at::Tensor& batch_variance, const at::Tensor& codebook_variance);

}  // namespace torchvq::functional
