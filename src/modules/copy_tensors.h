// Copies of modules whose members share tensors with their options. Cloneable copies
// children one by one, so an optimizer, or a member that is a grandchild, would keep the
// tensors of the discarded child.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace torchvq::detail {

/// Gives `to`, a module of the same structure, copies of all parameters and buffers of `from`, on
/// `device` or their own device, and its flags requires_grad and training.
void copy_tensors(const torch::nn::Module& from, torch::nn::Module& to,
                  const std::optional<c10::Device>& device);

}  // namespace torchvq::detail
