// Small constant tables, computed on the host, as tensors on a device.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// `values` as a tensor (n,) with these options. For devices other than the CPU it is cached until
/// the process ends, so that only the first call copies from the host, which waits for the device
/// and cannot be recorded in a CUDA graph.
at::Tensor device_table(const std::vector<double>& values, const at::TensorOptions& options);
at::Tensor device_table(const std::vector<float>& values, const at::TensorOptions& options);
at::Tensor device_table(at::IntArrayRef values, const at::TensorOptions& options);

}  // namespace torchvq::detail
