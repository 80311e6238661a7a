// Trains a SimVQ, ResidualSimVQ or RandomProjectionQuantizer on tensors from a file, for
// tests/python/test_sim_vq_cpp.py, which does the same in Python and compares every bit.
//
//   torchvq_run sim_vq IN OUT class=SimVQ dim=8 codebook_size=16 [option=value ...] [cast=half]
//
// IN has the state ("state.<name>"), "<i>.x", "<i>.weight" of the objective, and perhaps "<i>.mask"
// and "<i>.seed" (of the dropout) of each training step, and "eval.x".
#include <string>

#include <torchvq/modules/random_projection_quantizer.h>
#include <torchvq/modules/residual_sim_vq.h>

#include "modules/run_support.h"

namespace torchvq::testing::sim_vq_run {
namespace {

using Random = RandomProjectionQuantizerOptions;

const Setters<SimVQOptions> kSimVQ{
    TORCHVQ_OPTION(frozen_codebook_dim), TORCHVQ_OPTION(input_to_quantize_commit_loss_weight),
    TORCHVQ_OPTION(commitment_weight),   TORCHVQ_OPTION(channel_first),
    TORCHVQ_OPTION(rotation_trick),      TORCHVQ_OPTION(vqp_compat),
};
const Setters<ResidualSimVQOptions> kResidual{
    TORCHVQ_OPTION(heads),
    TORCHVQ_OPTION(quantize_dropout),
    TORCHVQ_OPTION(quantize_dropout_cutoff_index),
    TORCHVQ_OPTION(quantize_dropout_multiple_of),
    TORCHVQ_OPTION(channel_first),
    TORCHVQ_OPTION(rotation_trick),
    TORCHVQ_OPTION(eval_beam_size),
};
const Setters<Random> kRandom{
    TORCHVQ_OPTION(num_codebooks),     TORCHVQ_OPTION(norm),           TORCHVQ_OPTION(channel_last),
    TORCHVQ_OPTION(accept_image_fmap), TORCHVQ_OPTION(accept_3d_fmap),
};

/// Two layers with a nonlinearity between them, as the Python test has.
struct NetworkImpl : torch::nn::Cloneable<NetworkImpl> {
  NetworkImpl(int64_t from_, int64_t to_) : from(from_), to_dim(to_) { reset(); }
  void reset() override {
    first = register_module("0", torch::nn::Linear(from, 9));
    last = register_module("2", torch::nn::Linear(9, to_dim));
  }
  torch::Tensor forward(const torch::Tensor& codes) { return last(first(codes).tanh()); }
  int64_t from, to_dim;
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Network);

using Output = Tensors;

Output call(SimVQ& module, const torch::Tensor& x, const Given& in, const std::string& prefix) {
  const auto found = module(x, in.find(prefix + "mask"));
  return {{"quantized", found.quantized},
          {"indices", found.indices},
          {"loss", found.loss},
          {"decoded", module->indices_to_codes(found.indices)}};
}

Output call(ResidualSimVQ& module, const torch::Tensor& x, const Given& in,
            const std::string& prefix) {
  ResidualSimVQForwardOptions options;
  options.mask(in.find(prefix + "mask")).return_all_codes(true);
  if (const auto seed = in.find(prefix + "seed")) {
    options.rand_quantize_dropout_fixed_seed(seed->item<int64_t>());
  }
  const auto found = module(x, options);
  return {{"quantized", found.quantized},
          {"indices", found.indices},
          {"loss", found.loss},
          {"all_codes", found.all_codes},
          {"decoded", module->get_output_from_indices(found.indices)}};
}

/// Its output is the input: what has a gradient is the cross-entropy towards the codes of others.
Output call(RandomProjectionQuantizer& module, const torch::Tensor& x, const Given& in,
            const std::string& prefix) {
  RandomProjectionQuantizerForwardOptions options;
  options.mask(in.find(prefix + "mask"));
  const auto indices = module(x, options);
  const auto loss = module(x, options.indices(indices.clamp_min(0).flip(0)));
  return {{"quantized", x}, {"indices", indices}, {"loss", loss}};
}

void record(Tensors& results, const std::string& prefix, const Output& output) {
  for (const auto& [name, value] : output) results[prefix + name] = value.detach().clone();
}

template <typename Module>
void train(Module module, const Given& in, const std::string& to, const Words& words) {
  Tensors results;
  if (words.contains("cast")) module->to(dtype_of(words.at("cast")));
  load_state_dict(*module, in.state);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    const auto prefix = std::to_string(step) + ".";
    const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
    const auto output = call(module, x, in, prefix);
    record(results, prefix, output);
    const auto weighted =
        output.at("quantized").to(torch::kFloat) * in.tensors.at(prefix + "weight");
    (output.at("loss").sum() + weighted.sum()).backward();
    descend(*module, x, prefix, results);
  }
  module->eval();
  record(results, "eval.", call(module, in.tensors.at("eval.x"), in, "eval."));
  save(*module, results, to);
}

void run(const std::string& from, const std::string& to, const Words& words) {
  const Given in(from);
  const auto number = [&](const char* name) { return std::stoll(words.at(name)); };
  const auto dim = number("dim"), size = number("codebook_size");
  const auto name = words.at("class");
  if (name == "RandomProjectionQuantizer") {
    Random options(dim, size, number("codebook_dim"));
    set(options, kRandom, words);
    return train(RandomProjectionQuantizer(options), in, to, words);
  }
  SimVQOptions sim(dim, size);
  set(sim, kSimVQ, words);
  if (words.contains("codebook_transform")) {
    sim.codebook_transform(
        torch::nn::AnyModule(Network(sim.frozen_codebook_dim().value_or(dim), dim)));
  }
  if (name == "SimVQ") return train(SimVQ(sim), in, to, words);
  ResidualSimVQOptions options(dim, number("num_quantizers"), size);
  set(options, kResidual, words);
  train(ResidualSimVQ(options.sim_vq(sim)), in, to, words);
}

}  // namespace
}  // namespace torchvq::testing::sim_vq_run

void torchvq::testing::run_sim_vq(const std::string& from, const std::string& to,
                                  const Words& words) {
  sim_vq_run::run(from, to, words);
}
