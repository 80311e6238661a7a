// Options and tensors by name, for the modules whose results Python tests compare with Python's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <torchvq/io/safetensors.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/options/vector_quantize.h>

#include "run.h"

namespace torchvq::testing {

using Tensors = std::map<std::string, torch::Tensor>;

constexpr double kLearningRate = 0.1;

// Options by name
// ---------------------------------------------------------------------------------------------

inline void parse(bool& field, const std::string& text) { field = text == "True"; }
inline void parse(int64_t& field, const std::string& text) { field = std::stoll(text); }
inline void parse(double& field, const std::string& text) { field = std::stod(text); }

inline void parse(std::string& field, const std::string& text) { field = text; }

/// Parts that commas separate.
template <typename T>
void parse(std::vector<T>& field, const std::string& text) {
  std::stringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    parse(field.emplace_back(), word);
  }
}

template <typename T>
void parse(std::optional<T>& field, const std::string& text) {
  T value{};
  parse(value, text);
  field = value;
}

struct BridgeImpl : torch::nn::Cloneable<BridgeImpl> {
  BridgeImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(8, 8)); }
  torch::Tensor forward(const torch::Tensor& codes) { return codes + linear(codes); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Bridge);

inline void parse(torch::nn::AnyModule& field, const std::string& /*text*/) {
  field = torch::nn::AnyModule(Bridge());
}

inline void parse(CodebookOptimizer& field, const std::string& /*text*/) {
  field = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
}

template <typename Options>
using Setters = std::map<std::string, std::function<void(Options&, const std::string&)>>;

/// Sets the options that are among the words, and leaves the other words alone.
template <typename Options>
void set(Options& options, const Setters<Options>& setters, const Words& words) {
  for (const auto& [name, text] : words) {
    if (setters.contains(name)) setters.at(name)(options, text);
  }
}

#define TORCHVQ_OPTION(name) \
  {#name, [](auto& options, const std::string& text) { parse(options.name(), text); }}

inline const Setters<VectorQuantizeOptions> kVectorQuantizeOptions{
    TORCHVQ_OPTION(dim),
    TORCHVQ_OPTION(codebook_size),
    TORCHVQ_OPTION(codebook_dim),
    TORCHVQ_OPTION(heads),
    TORCHVQ_OPTION(separate_codebook_per_head),
    TORCHVQ_OPTION(layernorm_after_project_in),
    TORCHVQ_OPTION(channel_last),
    TORCHVQ_OPTION(accept_image_fmap),
    TORCHVQ_OPTION(accept_3d_fmap),
    TORCHVQ_OPTION(return_zeros_for_masked_padding),
    TORCHVQ_OPTION(use_cosine_sim),
    TORCHVQ_OPTION(stochastic_sample_codes),
    TORCHVQ_OPTION(sample_codebook_temp),
    TORCHVQ_OPTION(rotation_trick),
    TORCHVQ_OPTION(straight_through),
    TORCHVQ_OPTION(directional_reparam),
    TORCHVQ_OPTION(directional_reparam_variance),
    TORCHVQ_OPTION(sync_update_v),
    TORCHVQ_OPTION(route_gradients_to_input),
    TORCHVQ_OPTION(commitment_weight),
    TORCHVQ_OPTION(commitment_use_cross_entropy_loss),
    TORCHVQ_OPTION(orthogonal_reg_weight),
    TORCHVQ_OPTION(orthogonal_reg_active_codes_only),
    TORCHVQ_OPTION(orthogonal_reg_max_codes),
    TORCHVQ_OPTION(codebook_diversity_loss_weight),
    TORCHVQ_OPTION(codebook_diversity_temperature),
    TORCHVQ_OPTION(decay),
    TORCHVQ_OPTION(eps),
    TORCHVQ_OPTION(freeze_codebook),
    TORCHVQ_OPTION(ema_update),
    TORCHVQ_OPTION(manual_ema_update),
    TORCHVQ_OPTION(learnable_codebook),
    TORCHVQ_OPTION(in_place_codebook_optimizer),
    TORCHVQ_OPTION(vq_bridge),
    TORCHVQ_OPTION(kmeans_init),
    TORCHVQ_OPTION(kmeans_iters),
    TORCHVQ_OPTION(threshold_ema_dead_code),
    TORCHVQ_OPTION(dead_code_threshold_fraction),
    TORCHVQ_OPTION(affine_param),
    TORCHVQ_OPTION(affine_param_batch_decay),
    TORCHVQ_OPTION(affine_param_codebook_decay),
    TORCHVQ_OPTION(vqp_compat),
};

inline torch::Dtype dtype_of(const std::string& text) {
  return text == "bfloat16" ? torch::kBFloat16 : text == "half" ? torch::kHalf : torch::kDouble;
}

// Tensors
// -----------------------------------------------------------------------------------------------------

/// What a program is given: "state.<name>" and all else.
struct Given {
  explicit Given(const std::string& file_name) {
    const torchvq::io::SafetensorsFile file(file_name);
    for (const auto& [name, entry] : file.entries()) {
      (name.starts_with("state.") ? state[name.substr(6)] : tensors[name]) = file.tensor(name);
    }
  }

  [[nodiscard]] std::optional<torch::Tensor> find(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? std::nullopt : std::optional(found->second);
  }

  Tensors state, tensors;
};

/// Records the gradients of x and of all parameters, and makes a plain step on the parameters.
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
  torchvq::io::save_safetensors(file_name, results);
}

}  // namespace torchvq::testing
