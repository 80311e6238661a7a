// What an optimizer of torch::optim has accumulated, by the names that Python's optimizers use.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace torchvq::detail {

/// Tensors "<parameter>.<name>", the parameters counted over all groups: "0.exp_avg". A count of
/// steps is a float32 scalar, as in Python. Empty before the first step, and, with one warning, for
/// optimizers of a type that is not torch::optim's SGD, Adam, AdamW, RMSprop or Adagrad.
std::map<std::string, at::Tensor> optimizer_state(torch::optim::Optimizer& optimizer);

/// Replaces what the optimizer has accumulated by copies of such tensors; parameters that none of
/// them is for keep what they have.
///
/// Throws c10::ValueError for names or shapes that do not fit, before anything changes.
void load_optimizer_state(torch::optim::Optimizer& optimizer,
                          const std::map<std::string, at::Tensor>& state);

/// The checks of load_optimizer_state() alone.
void check_optimizer_state(torch::optim::Optimizer& optimizer,
                           const std::map<std::string, at::Tensor>& state);

}  // namespace torchvq::detail
