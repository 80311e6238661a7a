// Trains a ResidualVQ, or with groups=G a GroupedResidualVQ, on tensors from a file, for
// tests/python/test_residual_vq_cpp.py, which does the same in Python and compares every bit.
//
//   torchvq_run residual_vq IN OUT dim=8 num_quantizers=3 codebook_size=16 [option=value ...]
//
// Files as for vector_quantize; a step may have "<i>.mask", "<i>.indices" (targets) and
// "<i>.seed" (of the dropout). codebook_size=[4, 16, 7] gives each level its own. beam=B overrides
// beam_size in every call, codes=1 asks for all codes, refine=N refits up to N times for
// "refine.x" (and "refine.mask") after the last step.
#include <string>

#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/refine.h>
#include <torchvq/modules/residual_vq.h>

#include "modules/run_support.h"

namespace torchvq::testing::residual_vq_run {
namespace {

struct Arguments {
  ResidualVQOptions options{1};
  int64_t groups = 0;
  ResidualVQForwardOptions call;
  int64_t refine = 0;
};

Arguments parse_arguments(Words words) {
  Arguments arguments;
  const auto number = [&](const char* name) {
    const auto text = take(words, name);
    return text.empty() ? 0 : std::stoll(text);
  };
  arguments.groups = number("groups");
  arguments.refine = number("refine");
  if (const auto beam = number("beam")) arguments.call.beam_size(beam);
  arguments.call.return_all_codes(!take(words, "codes").empty());
  take_options(arguments.options, words);
  expect_none_left(words);
  auto& vq = arguments.options.vq();
  if (vq.in_place_codebook_optimizer()) vq.in_place_codebook_optimizer(sgd());
  if (!vq.vq_bridge().is_empty()) vq.vq_bridge(torch::nn::AnyModule(Bridge()));
  return arguments;
}

void record(Tensors& results, const std::string& prefix, const ResidualVQOutput& output) {
  results[prefix + "quantized"] = output.quantized.detach();
  results[prefix + "indices"] = output.indices;
  results[prefix + "loss"] = output.loss.detach();
  if (output.all_codes.defined()) {
    results[prefix + "all_codes"] = output.all_codes.detach().clone();
  }
}

template <typename Stack>
void train(Stack& stack, const Given& in, const std::string& prefix, ResidualVQForwardOptions call,
           Tensors& results) {
  const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
  call.mask(in.find(prefix + "mask")).indices(in.find(prefix + "indices"));
  if (const auto seed = in.find(prefix + "seed")) {
    call.rand_quantize_dropout_fixed_seed(seed->item<int64_t>());
  }
  const auto output = stack(x, call);
  record(results, prefix, output);
  const auto& weight = in.tensors.at(prefix + "weight");
  (output.loss.sum() + (output.quantized * weight).sum()).backward();
  descend(*stack, x, prefix, results);
}

template <typename Stack>
void refine_stack(Stack& stack, const Given& in, int64_t refits, Tensors& results) {
  const auto options = functional::RefineCodebooksOptions().iterations(refits);
  const auto found = refine(stack, in.tensors.at("refine.x"), in.find("refine.mask"), options);
  results["refine.errors"] = torch::tensor({found.error_before, found.error_after}, torch::kDouble);
  results["refine.iterations"] = torch::tensor(found.iterations);
}

template <typename Stack>
void run(Stack stack, const Given& in, const Arguments& arguments, const std::string& to) {
  const auto& call = arguments.call;
  Tensors results;
  load(*stack, in);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    train(stack, in, std::to_string(step) + ".", call, results);
  }
  if (arguments.refine > 0) refine_stack(stack, in, arguments.refine, results);
  stack->eval();
  const auto output = stack(in.tensors.at("eval.x"), call);
  record(results, "eval.", output);
  results["eval.decoded"] = stack->get_output_from_indices(output.indices).detach();
  results["eval.codes"] = stack->get_codes_from_indices(output.indices).detach();
  save(*stack, results, to);
}

void run(const std::string& from, const std::string& to, const Words& words) {
  const Given in(from);
  const auto arguments = parse_arguments(words);
  if (arguments.groups == 0) {
    run(ResidualVQ(arguments.options), in, arguments, to);
  } else {
    run(GroupedResidualVQ(GroupedResidualVQOptions(arguments.options.dim())
                              .groups(arguments.groups)
                              .accept_image_fmap(arguments.options.accept_image_fmap())
                              .rvq(arguments.options)),
        in, arguments, to);
  }
}

}  // namespace
}  // namespace torchvq::testing::residual_vq_run

void torchvq::testing::run_residual_vq(const std::string& from, const std::string& to,
                                       const Words& words) {
  residual_vq_run::run(from, to, words);
}
