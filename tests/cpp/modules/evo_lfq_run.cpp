// Runs an EvoLFQ on tensors from a file, for tests/python/test_lfq_cpp.py, which does the same in
// Python and compares every bit.
//
//   torchvq_run evo_lfq IN OUT is_sign=False dim=8 [option=value ...]
//
// IN has the state ("state.<name>") and "x" (B, *, 6).
#include <cmath>
#include <string>

#include <torchvq/modules/evo_lfq.h>

#include "modules/run_support.h"

namespace torchvq::testing::evo_lfq_run {
namespace {

torch::Tensor fitness_of(const torch::Tensor& decoded, const torch::Tensor& bits) {
  const auto set = bits.flatten(1).gt(0).sum(-1).to(at::kFloat);
  return at::where(set.remainder(5) == 0, std::nan(""), set - decoded.flatten(1).abs().amax(-1));
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const bool is_sign = take_flag(words, "is_sign");
  EvoLFQOptions options{LFQOptions()};
  take_options(options, words);
  expect_none_left(words);
  EvoLFQ evo(torch::nn::AnyModule(torch::nn::Linear(6, 8)),
             torch::nn::AnyModule(torch::nn::Linear(8, 6)), options);
  load(*evo, in);
  const auto x = in.tensors.at("x");
  Tensors results;
  const auto output = evo(x, 3.0);
  results["reconstructed"] = output.reconstructed.detach().clone();
  results["indices"] = output.indices.clone();
  results["loss"] = output.entropy_aux_loss.detach().clone();
  (output.reconstructed.square().mean() + output.entropy_aux_loss).backward();
  for (const auto& item : evo->named_parameters()) {
    results["gradient." + item.key()] = item.value().grad().clone();
  }
  results["bits"] = evo->encode(x, is_sign).clone();
  results["decoded"] = evo->decode_bits(results["bits"]).detach().clone();
  results["grown"] = evo->init_population_from_data(x, 7, 0.3, is_sign).clone();
  EvoLFQEvolveOptions call;
  call.shape({{5, 8}}).generations(6).return_best_decoded(true);
  call.step(EvoLFQStepOptions().mutation_rate(0.1).batch_size(5).is_sign(is_sign));
  int generation = 0;
  evo->evolve(fitness_of, call, [&](const EvoLFQGeneration& found) {
    const auto prefix = std::to_string(generation++) + ".";
    results[prefix + "pop_bits"] = found.pop_bits.clone();
    results[prefix + "best_gene"] = found.best_gene.clone();
    results[prefix + "best_decoded"] = found.best_decoded.clone();
    results[prefix + "best_fitness"] = torch::tensor(found.best_fitness, torch::kDouble);
    return true;
  });
  save(*evo, results, to);
}

}  // namespace
}  // namespace torchvq::testing::evo_lfq_run

void torchvq::testing::run_evo_lfq(const std::string& from, const std::string& to,
                                   const Words& words) {
  evo_lfq_run::run(from, to, words);
}
