// Trains a HierarchicalVQ on tensors from a file, for tests/python/test_hierarchical_vq_cpp.py,
// which does the same in Python and compares every bit.
//
//   torchvq_run hierarchical_vq IN OUT dim=6 codebook_size=11 scales=[1, 2, 4] [option=value ...]
//                               [cast=half]
//
// IN has the state ("state.<name>"), "<i>.x", "<i>.weight" of the objective, and optionally
// "<i>.mask", "<i>.lens" and "<i>.target.<n>" of each training step, and "eval.x".
#include <string>
#include <vector>

#include <torchvq/modules/hierarchical_vq.h>

#include "modules/run_support.h"

namespace torchvq::testing::hierarchical_vq_run {
namespace {

std::vector<int64_t> positions(const HierarchicalVQ& module, const torch::Tensor& x) {
  const auto sizes = x.sizes();
  return module->options.channel_first() ? sizes.slice(2).vec()
                                         : sizes.slice(1, sizes.size() - 2).vec();
}

Tensors call(HierarchicalVQ& module, const torch::Tensor& x, const Given& in,
             const std::string& prefix) {
  HierarchicalVQForwardOptions options;
  options.mask(in.find(prefix + "mask")).lens(in.find(prefix + "lens"));
  std::vector<torch::Tensor> targets;
  for (int64_t n = 0; in.find(prefix + "target." + std::to_string(n)); ++n) {
    targets.push_back(in.tensors.at(prefix + "target." + std::to_string(n)));
  }
  if (!targets.empty()) options.indices(targets);
  const auto found = module(x, options);
  Tensors output{{"quantized", found.quantized}, {"loss", found.loss}};
  for (size_t n = 0; n < found.indices.size(); ++n) {
    output["indices." + std::to_string(n)] = found.indices[n];
  }
  output["decoded"] =
      module->get_output_from_indices(found.indices, positions(module, x), options.mask());
  return output;
}

void record(Tensors& results, const std::string& prefix, const Tensors& output) {
  for (const auto& [name, value] : output) results[prefix + name] = value.detach().clone();
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const auto cast = take(words, "cast");
  HierarchicalVQOptions options(1, 1, {1});
  take_options(options, words);
  expect_none_left(words);
  HierarchicalVQ module(options);
  if (!cast.empty()) module->to(dtype_of(cast));
  load(*module, in);
  Tensors results;
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    const auto prefix = std::to_string(step) + ".";
    const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
    const auto output = call(module, x, in, prefix);
    record(results, prefix, output);
    const auto weighted =
        output.at("quantized").to(torch::kFloat) * in.tensors.at(prefix + "weight");
    (output.at("loss") + weighted.sum()).backward();
    descend(*module, x, prefix, results);
  }
  const auto stats = module->stats();
  for (size_t n = 0; n < stats.size(); ++n) {
    results["stats." + std::to_string(n)] =
        torch::tensor({stats[n].usage, stats[n].perplexity, static_cast<double>(stats[n].dead),
                       static_cast<double>(stats[n].replaced), stats[n].entropy_bits,
                       static_cast<double>(stats[n].tokens)},
                      torch::kDouble);
  }
  module->eval();
  record(results, "eval.", call(module, in.tensors.at("eval.x"), in, "eval."));
  save(*module, results, to);
}

}  // namespace
}  // namespace torchvq::testing::hierarchical_vq_run

void torchvq::testing::run_hierarchical_vq(const std::string& from, const std::string& to,
                                           const Words& words) {
  hierarchical_vq_run::run(from, to, words);
}
