// Runs an LFQ, or with num_quantizers=Q a ResidualLFQ, or with groups=G too a GroupedResidualLFQ,
// on tensors from a file, for tests/python/test_lfq_cpp.py, which does the same in Python and
// compares every bit.
//
//   torchvq_run lfq IN OUT [option=value ...]
//
// IN has the state ("state.<name>"), "<i>.x", "<i>.weight" of the objective, perhaps "<i>.mask" and
// "<i>.seed" (of the dropout) of each training step, and "eval.x".
#include <string>

#include <torch/nn/modules/activation.h>

#include <torchvq/modules/residual_lfq.h>

#include "modules/run_support.h"

namespace torchvq::testing::lfq_run {
namespace {

torch::Tensor decode(LFQ& lfq, const torch::Tensor& indices) {
  return lfq->indices_to_codes(indices);
}
template <typename Stack>
torch::Tensor decode(Stack& stack, const torch::Tensor& indices) {
  return stack->get_output_from_indices(indices);
}

struct Output {
  torch::Tensor quantized, indices, loss;
};

Output call(LFQ& lfq, const torch::Tensor& x, const Given& in, const std::string& prefix,
            Tensors& results) {
  const auto found = lfq(x, 3.0, in.find(prefix + "mask"));
  const auto& terms = found.loss_breakdown;
  results[prefix + "per_sample_entropy"] = terms.per_sample_entropy.detach().clone();
  results[prefix + "batch_entropy"] = terms.batch_entropy.detach().clone();
  results[prefix + "commitment"] = terms.commitment.detach().clone();
  return {found.quantized, found.indices, found.entropy_aux_loss};
}
template <typename Stack>
Output call(Stack& stack, const torch::Tensor& x, const Given& in, const std::string& prefix,
            Tensors& results) {
  ResidualLFQForwardOptions options;
  options.mask(in.find(prefix + "mask")).return_all_codes(true);
  if (const auto seed = in.find(prefix + "seed")) {
    options.rand_quantize_dropout_fixed_seed(seed->item<int64_t>());
  }
  const auto found = stack(x, options);
  results[prefix + "all_codes"] = found.all_codes.detach().clone();
  return {found.quantized, found.indices, found.loss};
}

void record(const Output& output, const std::string& prefix, Tensors& results) {
  results[prefix + "quantized"] = output.quantized.detach().clone();
  results[prefix + "indices"] = output.indices.clone();
  results[prefix + "loss"] = output.loss.detach().clone();
}

template <typename Module>
void run(Module module, const Given& in, const std::string& to, const std::string& dtype) {
  Tensors results;
  if (!dtype.empty()) module->to(dtype_of(dtype));
  load(*module, in);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    const auto prefix = std::to_string(step) + ".";
    const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
    const auto output = call(module, x, in, prefix, results);
    record(output, prefix, results);
    ((output.quantized * in.tensors.at(prefix + "weight")).sum() + output.loss.sum()).backward();
    descend(*module, x, prefix, results);
  }
  module->eval();
  const auto output = call(module, in.tensors.at("eval.x"), in, "eval.", results);
  record(output, "eval.", results);
  results["eval.decoded"] = decode(module, output.indices).detach().clone();
  save(*module, results, to);
}

void use_tanh(LFQOptions& options) {
  auto& activation = options.straight_through_activation();
  if (!activation.is_empty()) activation = torch::nn::AnyModule(torch::nn::Tanh());
}

/// With groups, `dim` of the stack is that of a group.
GroupedResidualLFQOptions grouped_options(Words& words) {
  GroupedResidualLFQOptions options(1, ResidualLFQOptions(1, 1, 2));
  take_options(options, words);
  use_tanh(options.rlfq().lfq());
  options.rlfq().dim(options.dim());
  return options;
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const auto dtype = take(words, "dtype");
  if (!words.contains("num_quantizers")) {
    LFQOptions lfq;
    take_options(lfq, words);
    expect_none_left(words);
    use_tanh(lfq);
    run(LFQ(lfq), in, to, dtype);
    return;
  }
  const bool groups = words.contains("groups");
  const auto options = grouped_options(words);
  expect_none_left(words);
  if (groups) {
    run(GroupedResidualLFQ(options), in, to, dtype);
  } else {
    run(ResidualLFQ(options.rlfq()), in, to, dtype);
  }
}

}  // namespace
}  // namespace torchvq::testing::lfq_run

void torchvq::testing::run_lfq(const std::string& from, const std::string& to, const Words& words) {
  lfq_run::run(from, to, words);
}
