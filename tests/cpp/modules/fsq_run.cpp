// Runs an FSQ, or with num_quantizers=Q a ResidualFSQ, or with groups=G too a GroupedResidualFSQ,
// on tensors from a file, for tests/python/test_fsq_cpp.py, which does the same in Python and
// compares every bit.
//
//   torchvq_run fsq IN OUT levels=[8,5,5] [option=value ...]
//
// IN has the state ("state.<name>"), "<i>.x", "<i>.weight" of the objective, perhaps "<i>.mask" and
// "<i>.seed" (of the dropout) of each training step, and "eval.x".
#include <string>
#include <vector>

#include <torchvq/modules/residual_fsq.h>

#include "modules/run_support.h"

namespace torchvq::testing::fsq_run {
namespace {

torch::Tensor decode(FSQ& fsq, const torch::Tensor& indices) {
  return fsq->indices_to_codes(indices);
}
template <typename Stack>
torch::Tensor decode(Stack& stack, const torch::Tensor& indices) {
  return stack->get_output_from_indices(indices);
}

ScalarOutput call(FSQ& fsq, const torch::Tensor& x, const Given& in, const std::string& prefix) {
  return fsq(x, in.find(prefix + "mask"));
}
template <typename Stack>
ResidualFSQOutput call(Stack& stack, const torch::Tensor& x, const Given& in,
                       const std::string& prefix) {
  ResidualFSQForwardOptions options;
  options.mask(in.find(prefix + "mask"));
  if (const auto seed = in.find(prefix + "seed")) {
    options.rand_quantize_dropout_fixed_seed(seed->item<int64_t>());
  }
  return stack(x, options);
}

template <typename Module>
void run(Module module, const Given& in, const std::string& to) {
  Tensors results;
  load(*module, in);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    const auto prefix = std::to_string(step) + ".";
    const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
    const auto output = call(module, x, in, prefix);
    results[prefix + "quantized"] = output.quantized.detach().clone();
    results[prefix + "indices"] = output.indices;
    (output.quantized * in.tensors.at(prefix + "weight")).sum().backward();
    descend(*module, x, prefix, results);
  }
  module->eval();
  const auto output = call(module, in.tensors.at("eval.x"), in, "eval.");
  results["eval.quantized"] = output.quantized.detach().clone();
  results["eval.indices"] = output.indices;
  results["eval.decoded"] = decode(module, output.indices).detach().clone();
  save(*module, results, to);
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  if (!words.contains("num_quantizers")) {
    FSQOptions options{std::vector<int64_t>()};
    take_options(options, words);
    expect_none_left(words);
    run(FSQ(options), in, to);
    return;
  }
  if (!words.contains("groups")) {
    ResidualFSQOptions options({}, 1);
    take_options(options, words);
    expect_none_left(words);
    run(ResidualFSQ(options), in, to);
    return;
  }
  GroupedResidualFSQOptions options(1, ResidualFSQOptions({}, 1));
  take_options(options, words);
  expect_none_left(words);
  run(GroupedResidualFSQ(options), in, to);
}

}  // namespace
}  // namespace torchvq::testing::fsq_run

void torchvq::testing::run_fsq(const std::string& from, const std::string& to, const Words& words) {
  fsq_run::run(from, to, words);
}
