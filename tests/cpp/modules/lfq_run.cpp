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

const Setters<LFQOptions> kOwn{
    TORCHVQ_OPTION(dim),
    TORCHVQ_OPTION(codebook_size),
    TORCHVQ_OPTION(num_codebooks),
    TORCHVQ_OPTION(keep_num_codebooks_dim),
    TORCHVQ_OPTION(channel_first),
    TORCHVQ_OPTION(codebook_scale),
    TORCHVQ_OPTION(has_projections),
    TORCHVQ_OPTION(projection_has_bias),
    TORCHVQ_OPTION(cosine_sim_project_in),
    TORCHVQ_OPTION(cosine_sim_project_in_scale),
    TORCHVQ_OPTION(soft_clamp_input_value),
};
const Setters<LFQOptions> kShared{
    TORCHVQ_OPTION(entropy_loss_weight),
    TORCHVQ_OPTION(commitment_loss_weight),
    TORCHVQ_OPTION(diversity_gamma),
    TORCHVQ_OPTION(frac_per_sample_entropy),
    TORCHVQ_OPTION(experimental_softplus_entropy_loss),
    TORCHVQ_OPTION(entropy_loss_offset),
    TORCHVQ_OPTION(spherical),
    TORCHVQ_OPTION(orthogonal_rotation),
    {"straight_through_activation",
     [](auto& options, const std::string& /*text*/) {
       options.straight_through_activation(torch::nn::AnyModule(torch::nn::Tanh()));
     }},
};
const Setters<ResidualLFQOptions> kResidual{
    TORCHVQ_OPTION(is_channel_first),
    TORCHVQ_OPTION(quantize_dropout),
    TORCHVQ_OPTION(quantize_dropout_cutoff_index),
    TORCHVQ_OPTION(quantize_dropout_multiple_of),
    TORCHVQ_OPTION(soft_clamp_input_value),
    TORCHVQ_OPTION(vqp_compat),
};

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
void run(Module module, const Given& in, const std::string& to, const Words& words) {
  Tensors results;
  if (words.contains("dtype")) module->to(dtype_of(words.at("dtype")));
  load_state_dict(*module, in.state);
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

void run(const std::string& from, const std::string& to, const Words& words) {
  const Given in(from);
  LFQOptions lfq;
  set(lfq, kShared, words);
  if (!words.contains("num_quantizers")) {
    set(lfq, kOwn, words);
    return run(LFQ(lfq), in, to, words);
  }
  const auto number = [&](const char* name) { return std::stoll(words.at(name)); };
  const auto dim = number("dim");
  const auto groups = words.contains("groups") ? number("groups") : 1;
  ResidualLFQOptions residual(dim / groups, number("num_quantizers"), number("codebook_size"));
  set(residual, kResidual, words);
  residual.lfq(lfq);
  if (!words.contains("groups")) {
    return run(ResidualLFQ(residual), in, to, words);
  }
  run(GroupedResidualLFQ(GroupedResidualLFQOptions(dim, residual)
                             .groups(groups)
                             .accept_image_fmap(words.contains("accept_image_fmap"))),
      in, to, words);
}

}  // namespace
}  // namespace torchvq::testing::lfq_run

void torchvq::testing::run_lfq(const std::string& from, const std::string& to, const Words& words) {
  lfq_run::run(from, to, words);
}
