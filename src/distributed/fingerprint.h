// Hashes of values that must be the same on all ranks. They are the same on every device; computing
// them reads nothing on the host.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::distributed {

/// 64 bits of a text.
uint64_t fingerprint(std::string_view text);

/// 64 bits of the values of a tensor, bit for bit, as an int64 scalar on its device. The layout
/// does not matter.
at::Tensor fingerprint(const at::Tensor& tensor);

/// fingerprint() by tensor operators, used on devices other than the CPU; declared for its test.
at::Tensor fingerprint_by_operators(const at::Tensor& tensor);

/// 64 bits of several tensors in their order; int64 scalar on `device`.
at::Tensor fingerprint(at::TensorList tensors, at::Device device);

}  // namespace torchvq::distributed
