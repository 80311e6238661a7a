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

/// Two layers with a nonlinearity between them, as in the Python test.
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

/// The output is the input; only the cross-entropy towards other codes has a gradient.
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
void train(Module module, const Given& in, const std::string& to, const std::string& cast) {
  Tensors results;
  if (!cast.empty()) module->to(dtype_of(cast));
  load(*module, in);
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

template <typename Options>
Options with(Options options, Words& words) {
  take_options(options, words);
  expect_none_left(words);
  return options;
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const auto name = take(words, "class"), cast = take(words, "cast");
  const bool network = words.contains("codebook_transform");
  take(words, "codebook_transform");
  const auto transform = [&](SimVQOptions& sim, int64_t dim) {
    if (!network) return;
    sim.codebook_transform(
        torch::nn::AnyModule(Network(sim.frozen_codebook_dim().value_or(dim), dim)));
  };
  if (name == "RandomProjectionQuantizer") {
    const auto options = with(RandomProjectionQuantizerOptions(1, 1, 1), words);
    train(RandomProjectionQuantizer(options), in, to, cast);
  } else if (name == "SimVQ") {
    auto options = with(SimVQOptions(1, 1), words);
    transform(options, options.dim());
    train(SimVQ(options), in, to, cast);
  } else {
    auto options = with(ResidualSimVQOptions(1, 1, 1), words);
    transform(options.sim_vq(), options.dim() / options.heads());
    train(ResidualSimVQ(options), in, to, cast);
  }
}

}  // namespace
}  // namespace torchvq::testing::sim_vq_run

void torchvq::testing::run_sim_vq(const std::string& from, const std::string& to,
                                  const Words& words) {
  sim_vq_run::run(from, to, words);
}
