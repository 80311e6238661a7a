// Small constant tables, made on the host, as tensors of a device.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// `values` as a tensor (n,) of the options. A device other than the CPU keeps it for as long as
/// the process runs, so that only the first call copies from the host, which waits for the device
/// and which a CUDA graph cannot record.
at::Tensor device_table(const std::vector<double>& values, const at::TensorOptions& options);
at::Tensor device_table(const std::vector<float>& values, const at::TensorOptions& options);
at::Tensor device_table(at::IntArrayRef values, const at::TensorOptions& options);

}  // namespace torchvq::detail
