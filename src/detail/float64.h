// Devices without float64.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {

/// Throws if the device has no float64, which some options of an operator need.
inline void check_float64(const char* op, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_mps(), op,
                   ": expected tensors to be on a device with float64, but got mps; move them to "
                   "the CPU");
}

}  // namespace torchvq::detail
