// Argument checks of count_codes_.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_count_codes_(at::TensorList counts, at::TensorList indices);

}  // namespace torchvq::detail
