// Options and tensors by name, for modules whose results Python tests compare with Python's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <torchvq/io/safetensors.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/options/by_name.h>
#include <torchvq/options/vector_quantize.h>

#include "run.h"

namespace torchvq::testing {

using Tensors = std::map<std::string, torch::Tensor>;

constexpr double kLearningRate = 0.1;

// Options by name ---------------------------------------------------------------------------------

struct BridgeImpl : torch::nn::Cloneable<BridgeImpl> {
  BridgeImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(8, 8)); }
  torch::Tensor forward(const torch::Tensor& codes) { return codes + linear(codes); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Bridge);

inline CodebookOptimizer sgd() {
  return [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
}

/// Sets the options named among the words and removes those words; the others stay.
template <typename Options>
void take_options(Options& options, Words& words) {
  std::erase_if(words,
                [&](const auto& word) { return set_option(options, word.first, word.second); });
}

/// Removes and returns a word; empty if it is not there.
inline std::string take(Words& words, const std::string& name) {
  const auto node = words.extract(name);
  return node ? node.mapped() : std::string();
}

inline bool take_flag(Words& words, const std::string& name) { return take(words, name) == "True"; }

inline void expect_none_left(const Words& words) {
  TORCH_CHECK_VALUE(words.empty(), "torchvq_run: no such option: ", words.begin()->first);
}

inline torch::Dtype dtype_of(const std::string& text) {
  return text == "bfloat16" ? torch::kBFloat16 : text == "half" ? torch::kHalf : torch::kDouble;
}

// Tensors -----------------------------------------------------------------------------------------

/// The input of a program: tensors "state.<name>", and all others.
struct Given {
  explicit Given(const std::string& file_name) {
    const torchvq::io::SafetensorsFile file(file_name);
    for (const auto& [name, entry] : file.entries()) {
      auto& to = name.starts_with("state.") ? state[name.substr(6)] : tensors[name];
      to = file.tensor(name).to(device);
    }
  }

  [[nodiscard]] std::optional<torch::Tensor> find(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? std::nullopt : std::optional(found->second);
  }

  torch::Device device = run_device();
  Tensors state, tensors;
};

/// Loads the state, and moves the module to the device of the run.
inline void load(torch::nn::Module& module, const Given& in) {
  torchvq::load_state_dict(module, in.state);
  module.to(in.device);
}

/// Records the gradients of x and of all parameters, and makes a plain gradient step.
inline void descend(torch::nn::Module& module, const torch::Tensor& x, const std::string& prefix,
                    Tensors& results) {
  results[prefix + "gradient"] = x.grad().defined() ? x.grad() : torch::zeros_like(x);
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    auto& parameter = item.value();
    if (parameter.grad().defined()) {
      results[prefix + "gradient." + item.key()] = parameter.grad().clone();
      parameter.sub_(parameter.grad(), kLearningRate);
      parameter.mutable_grad().reset();
    }
  }
}

inline void save(const torch::nn::Module& module, Tensors& results, const std::string& file_name) {
  for (const auto& [name, value] : torchvq::state_dict(module)) {
    results["state." + name] = value.clone();
  }
  for (auto& [name, value] : results) value = value.cpu();
  torchvq::io::save_safetensors(file_name, results);
}

}  // namespace torchvq::testing
