// The state of a module to and from a safetensors file: what state_dict() and load_state_dict() are
// in Python, with the same names.
#pragma once

#include <torch/torch.h>
#include <torchvq/io/safetensors.h>

#include <map>
#include <string>

/// Parameters and buffers by their names, like "decoder.0.weight".
inline std::map<std::string, torch::Tensor> state_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> state;
  for (const auto& item : module.named_parameters()) {
    state[item.key()] = item.value().detach();
  }
  for (const auto& item : module.named_buffers()) {
    state[item.key()] = item.value();
  }
  return state;
}

/// Fills parameters and buffers from the file; what else is in there is left alone.
///
/// Throws       c10::ValueError when a name is missing or a shape differs.
inline void load_state(const torch::nn::Module& module, const torchvq::io::SafetensorsFile& file) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, value] : state_of(module)) {
    const auto loaded = file.tensor(name);
    TORCH_CHECK_VALUE(loaded.sizes() == value.sizes(), "expected ", name, " to have shape ",
                      value.sizes(), ", but got ", loaded.sizes());
    value.copy_(loaded);
  }
}
