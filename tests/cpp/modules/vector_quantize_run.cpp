// Trains a VectorQuantize on tensors from a file, for tests/python/test_vector_quantize_cpp.py,
// which does the same in Python and compares every bit.
//
//   torchvq_run vector_quantize IN OUT dim=8 codebook_size=16 [option=value ...] [cast=bfloat16]
//
// IN and OUT are safetensors files. IN holds the state ("state.<name>") and for each training step
// i the input "<i>.x", the gradient of the output "<i>.weight", and maybe "<i>.mask", "<i>.indices"
// (targets) and "<i>.ema_update_weight"; "eval.x" is quantized at the end. OUT holds what each step
// returned, its gradients, and the state after the last.
#include <string>

#include <torchvq/modules/vector_quantize.h>

#include "modules/run_support.h"

namespace torchvq::testing::vector_quantize_run {
namespace {

// Training ----------------------------------------------------------------------------------------

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

void train(torchvq::VectorQuantize& module, const Given& in, const std::string& prefix,
           Tensors& results) {
  const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
  const auto output = module(x, torchvq::VectorQuantizeForwardOptions()
                                    .mask(in.find(prefix + "mask"))
                                    .indices(in.find(prefix + "indices"))
                                    .ema_update_weight(in.find(prefix + "ema_update_weight")));
  record(results, prefix, output);
  const auto& weight = in.tensors.at(prefix + "weight");
  (output.loss.sum() + (output.quantized.to(torch::kFloat) * weight).sum()).backward();
  descend(*module, x, prefix, results);
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const auto cast = take(words, "cast");
  torchvq::VectorQuantizeOptions options(1);
  take_options(options, words);
  expect_none_left(words);
  if (options.in_place_codebook_optimizer()) options.in_place_codebook_optimizer(sgd());
  if (!options.vq_bridge().is_empty()) options.vq_bridge(torch::nn::AnyModule(Bridge()));
  Tensors results;
  torchvq::VectorQuantize module(options);
  if (!cast.empty()) module->to(dtype_of(cast));
  load(*module, in);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    train(module, in, std::to_string(step) + ".", results);
  }
  module->eval();
  const auto output = module(in.tensors.at("eval.x"));
  record(results, "eval.", output);
  results["eval.decoded"] = module->get_output_from_indices(output.indices).detach();
  save(*module, results, to);
}

}  // namespace
}  // namespace torchvq::testing::vector_quantize_run

void torchvq::testing::run_vector_quantize(const std::string& from, const std::string& to,
                                           const Words& words) {
  vector_quantize_run::run(from, to, words);
}
