// The state of an optimizer of torch::optim, under the names of Python's optimizers.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace torchvq::detail {

/// Tensors "<parameter>.<name>", with parameters numbered over all groups: "0.exp_avg". A step
/// count is a float32 scalar, as in Python. Empty before the first step, and, with one warning, for
/// optimizers other than torch::optim's SGD, Adam, AdamW, RMSprop and Adagrad.
std::map<std::string, at::Tensor> optimizer_state(torch::optim::Optimizer& optimizer);

/// Replaces the state of the optimizer by copies of such tensors; parameters without a tensor begin
/// anew, but for Adagrad, whose state is there from its construction on.
///
/// Throws c10::ValueError for names or shapes that do not fit, for a count of steps that is none,
/// and for a parameter with only a part of what the optimizer reads, before anything changes.
void load_optimizer_state(torch::optim::Optimizer& optimizer,
                          const std::map<std::string, at::Tensor>& state);

/// Gives the groups of `to` the options of those of `from`, if the optimizer is one of these types.
/// Throws c10::ValueError if it has another number of groups.
void copy_optimizer_options(const torch::optim::Optimizer& from, torch::optim::Optimizer& to);

/// Moves and casts the state to the devices and dtypes of its parameters, as Module::to() does not.
void follow_parameters(torch::optim::Optimizer& optimizer);

/// Only the checks of load_optimizer_state().
void check_optimizer_state(torch::optim::Optimizer& optimizer,
                           const std::map<std::string, at::Tensor>& state);

}  // namespace torchvq::detail
