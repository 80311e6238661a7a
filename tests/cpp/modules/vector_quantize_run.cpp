// Trains a VectorQuantize on tensors from a file, for tests/python/test_vector_quantize_cpp.py,
// which does the same in Python and compares every bit.
//
//   vector_quantize_run IN OUT dim=8 codebook_size=16 [option=value ...] [cast=bfloat16]
//
// IN and OUT are safetensors files. IN holds the state ("state.<name>") and for each training step
// i the input "<i>.x", the gradient of the output "<i>.weight", and maybe "<i>.mask", "<i>.indices"
// (targets) and "<i>.ema_update_weight"; "eval.x" is quantized at the end. OUT holds what each step
// returned, its gradients, and the state after the last.
#include <torchvq/io/safetensors.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>

#include <functional>
#include <iostream>
#include <map>
#include <string>

#include <torch/torch.h>

namespace {

using Tensors = std::map<std::string, torch::Tensor>;
using torchvq::VectorQuantizeOptions;

constexpr double kLearningRate = 0.1;

// Options by name
// ---------------------------------------------------------------------------------------------

void parse(bool& field, const std::string& text) { field = text == "True"; }
void parse(int64_t& field, const std::string& text) { field = std::stoll(text); }
void parse(double& field, const std::string& text) { field = std::stod(text); }

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

void parse(torch::nn::AnyModule& field, const std::string& /*text*/) {
  field = torch::nn::AnyModule(Bridge());
}

void parse(torchvq::CodebookOptimizer& field, const std::string& /*text*/) {
  field = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
}

using Setter = std::function<void(VectorQuantizeOptions&, const std::string&)>;

#define OPTION(name) \
  {#name,            \
   [](VectorQuantizeOptions& options, const std::string& text) { parse(options.name(), text); }}

const std::map<std::string, Setter> kOptions{
    OPTION(dim),
    OPTION(codebook_size),
    OPTION(codebook_dim),
    OPTION(heads),
    OPTION(separate_codebook_per_head),
    OPTION(layernorm_after_project_in),
    OPTION(channel_last),
    OPTION(accept_image_fmap),
    OPTION(accept_3d_fmap),
    OPTION(return_zeros_for_masked_padding),
    OPTION(use_cosine_sim),
    OPTION(stochastic_sample_codes),
    OPTION(sample_codebook_temp),
    OPTION(rotation_trick),
    OPTION(straight_through),
    OPTION(directional_reparam),
    OPTION(directional_reparam_variance),
    OPTION(sync_update_v),
    OPTION(route_gradients_to_input),
    OPTION(commitment_weight),
    OPTION(commitment_use_cross_entropy_loss),
    OPTION(orthogonal_reg_weight),
    OPTION(orthogonal_reg_active_codes_only),
    OPTION(orthogonal_reg_max_codes),
    OPTION(codebook_diversity_loss_weight),
    OPTION(codebook_diversity_temperature),
    OPTION(decay),
    OPTION(eps),
    OPTION(freeze_codebook),
    OPTION(ema_update),
    OPTION(manual_ema_update),
    OPTION(learnable_codebook),
    OPTION(in_place_codebook_optimizer),
    OPTION(vq_bridge),
    OPTION(kmeans_init),
    OPTION(kmeans_iters),
    OPTION(threshold_ema_dead_code),
    OPTION(dead_code_threshold_fraction),
    OPTION(affine_param),
    OPTION(affine_param_batch_decay),
    OPTION(affine_param_codebook_decay),
    OPTION(vqp_compat),
};

struct Arguments {
  VectorQuantizeOptions options{1};
  std::optional<torch::Dtype> cast;
};

Arguments parse_arguments(int count, char** values) {
  Arguments arguments;
  for (int i = 0; i < count; ++i) {
    const std::string argument(values[i]);
    const auto split = argument.find('=');
    const auto name = argument.substr(0, split), text = argument.substr(split + 1);
    if (name == "cast") {
      arguments.cast = text == "bfloat16" ? torch::kBFloat16
                       : text == "half"   ? torch::kHalf
                                          : torch::kDouble;
    } else {
      kOptions.at(name)(arguments.options, text);
    }
  }
  return arguments;
}

// Training
// ----------------------------------------------------------------------------------------------------

std::optional<torch::Tensor> find(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional(found->second);
}

void record(Tensors& results, const std::string& prefix,
            const torchvq::VectorQuantizeOutput& output) {
  results[prefix + "quantized"] = output.quantized.detach();
  results[prefix + "indices"] = output.indices;
  results[prefix + "loss"] = output.loss.detach();
  results[prefix + "commitment"] = output.loss_breakdown.commitment.detach();
  results[prefix + "codebook_diversity"] = output.loss_breakdown.codebook_diversity.detach();
  results[prefix + "orthogonal_reg"] = output.loss_breakdown.orthogonal_reg.detach();
  results[prefix + "inplace_optimize"] = output.loss_breakdown.inplace_optimize.detach();
}

void train(torchvq::VectorQuantize& module, const Tensors& in, const std::string& prefix,
           Tensors& results) {
  const auto x = in.at(prefix + "x").clone().requires_grad_();
  const auto output = module(x, torchvq::VectorQuantizeForwardOptions()
                                    .mask(find(in, prefix + "mask"))
                                    .indices(find(in, prefix + "indices"))
                                    .ema_update_weight(find(in, prefix + "ema_update_weight")));
  record(results, prefix, output);
  (output.loss.sum() + (output.quantized.to(torch::kFloat) * in.at(prefix + "weight")).sum())
      .backward();
  results[prefix + "gradient"] = x.grad().defined() ? x.grad() : torch::zeros_like(x);
  const torch::NoGradGuard no_grad;
  for (auto& item : module->named_parameters()) {
    auto& parameter = item.value();
    if (parameter.grad().defined()) {
      results[prefix + "gradient." + item.key()] = parameter.grad().clone();
      parameter.sub_(parameter.grad(), kLearningRate);
      parameter.mutable_grad().reset();
    }
  }
}

void run(const std::string& from, const std::string& to, const Arguments& arguments) {
  const torchvq::io::SafetensorsFile file(from);
  Tensors in, initial, results;
  for (const auto& [name, entry] : file.entries()) {
    (name.starts_with("state.") ? initial[name.substr(6)] : in[name]) = file.tensor(name);
  }
  torchvq::VectorQuantize module(arguments.options);
  if (arguments.cast) {
    module->to(*arguments.cast);
  }
  torchvq::load_state_dict(*module, initial);
  for (int step = 0; in.contains(std::to_string(step) + ".x"); ++step) {
    train(module, in, std::to_string(step) + ".", results);
  }
  module->eval();
  const auto output = module(in.at("eval.x"));
  record(results, "eval.", output);
  results["eval.decoded"] = module->get_output_from_indices(output.indices).detach();
  for (const auto& [name, value] : torchvq::state_dict(*module)) {
    results["state." + name] = value;
  }
  torchvq::io::save_safetensors(to, results);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    run(argv[1], argv[2], parse_arguments(argc - 3, argv + 3));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
