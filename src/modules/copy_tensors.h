// Copies of modules whose members share tensors with their options, which Cloneable does not make
// right: it copies children one by one, so that an optimizer, or a member that is a grandchild,
// keeps the tensors of the child that was thrown away.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace torchvq::detail {

/// Gives `to`, a module of the same structure, copies of all parameters and buffers of `from`, on
/// `device` or where they are, what requires grad, and what is in training.
void copy_tensors(const torch::nn::Module& from, torch::nn::Module& to,
                  const std::optional<c10::Device>& device);

}  // namespace torchvq::detail
