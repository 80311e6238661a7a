// Argument checks of sync_update_v.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_sync_update_v(const at::Tensor& quantized, double v);

}  // namespace torchvq::detail
