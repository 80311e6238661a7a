// Trains a BinaryMapper, LatentQuantize or FSP on tensors from a file, for
// tests/python/test_scalar_modules_cpp.py, which does the same in Python and compares every bit.
//
//   torchvq_run scalar IN OUT class=FSP levels=8,5,5 [option=value ...] [cast=half]
//
// Options are those of the constructor and of forward. IN has the state ("state.<name>"), "<i>.x",
// "<i>.weight" of the objective and perhaps "<i>.mask" of each training step, and "eval.x".
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torchvq/modules/binary_mapper.h>
#include <torchvq/modules/fsp.h>
#include <torchvq/modules/latent_quantize.h>

#include "modules/run_support.h"

namespace torchvq::testing::scalar_run {
namespace {

const Setters<BinaryMapperOptions> kBinaryMapper{
    TORCHVQ_OPTION(bits),
    TORCHVQ_OPTION(kl_loss_threshold),
    TORCHVQ_OPTION(deterministic_on_eval),
    TORCHVQ_OPTION(vqp_compat),
};
const Setters<BinaryMapperForwardOptions> kBinaryMapperCall{
    TORCHVQ_OPTION(temperature),        TORCHVQ_OPTION(straight_through),
    TORCHVQ_OPTION(calc_aux_loss),      TORCHVQ_OPTION(deterministic),
    TORCHVQ_OPTION(reduce_aux_kl_loss),
};
const Setters<LatentQuantizeOptions> kLatentQuantize{
    TORCHVQ_OPTION(dim),
    TORCHVQ_OPTION(commitment_loss_weight),
    TORCHVQ_OPTION(quantization_loss_weight),
    TORCHVQ_OPTION(num_codebooks),
    TORCHVQ_OPTION(keep_num_codebooks_dim),
    TORCHVQ_OPTION(optimize_values),
    TORCHVQ_OPTION(in_place_codebook_optimizer),
    TORCHVQ_OPTION(channel_first),
};
const Setters<FSPOptions> kFSP{
    TORCHVQ_OPTION(dim),         TORCHVQ_OPTION(channel_first), TORCHVQ_OPTION(projection_has_bias),
    TORCHVQ_OPTION(act_name),    TORCHVQ_OPTION(quantize_rate), TORCHVQ_OPTION(need_inv_act),
    TORCHVQ_OPTION(vector_norm),
};
const Setters<FSPForwardOptions> kFSPCall{TORCHVQ_OPTION(eps)};

// Words
// -----------------------------------------------------------------------------------------------

std::string take(Words& words, const std::string& name) {
  const auto node = words.extract(name);
  return node ? node.mapped() : std::string();
}

/// Takes the words that name options.
template <typename Options>
Options with(Options options, const Setters<Options>& setters, Words& words) {
  for (const auto& [name, setter] : setters) {
    if (words.contains(name)) setter(options, take(words, name));
  }
  return options;
}

// Modules
// -----------------------------------------------------------------------------------------------

template <typename Module, typename Call>
struct Subject {
  Module module;
  Call call;
};
using Binary = Subject<BinaryMapper, BinaryMapperForwardOptions>;
using Latent = Subject<LatentQuantize, std::monostate>;
using Perturbed = Subject<FSP, FSPForwardOptions>;
using Output = std::map<std::string, torch::Tensor>;

Output forward(Binary& subject, const torch::Tensor& x, const std::optional<torch::Tensor>& mask) {
  auto call = subject.call;
  const auto found = subject.module(x, call.mask(mask));
  return {{"output", found.one_hot}, {"indices", found.indices}, {"loss", found.aux_kl_loss}};
}

Output forward(Latent& subject, const torch::Tensor& x, const std::optional<torch::Tensor>& mask) {
  const auto found = subject.module(x, mask);
  return {{"output", found.quantized}, {"indices", found.indices}, {"loss", found.loss}};
}

Output forward(Perturbed& subject, const torch::Tensor& x,
               const std::optional<torch::Tensor>& mask) {
  auto call = subject.call;
  const auto found = subject.module(x, call.mask(mask));
  return {{"output", found.quantized},
          {"indices", found.indices},
          {"loss", found.norm_loss},
          {"level_indices", found.level_indices},
          {"mean", found.mean},
          {"variance", found.variance},
          {"skewness", found.skewness},
          {"kurtosis", found.kurtosis},
          {"acceptance", found.p_accept_prob}};
}

Output others(Binary& subject, const torch::Tensor& x, const torch::Tensor& indices) {
  auto& mapper = subject.module;
  return {{"entropy", mapper->binary_entropy(x)},
          {"aux_loss", mapper->calc_aux_loss(x, /*reduce_aux_kl_loss=*/false)},
          {"log_prob", mapper->log_prob(x, indices)}};
}

Output others(Latent& subject, const torch::Tensor& /*x*/, const torch::Tensor& indices) {
  auto& latent = subject.module;
  const auto codes = latent->indices_to_codes(indices, /*project_out=*/false);
  return {{"decoded", latent->indices_to_codes(indices)}, {"codes", codes}};
}

Output others(Perturbed& subject, const torch::Tensor& /*x*/, const torch::Tensor& indices) {
  auto& fsp = subject.module;
  const auto levels = fsp->indices_to_level_indices(indices);
  return {{"decoded", fsp->indices_to_codes(indices, subject.call.eps())},
          {"act", fsp->indices_to_act_value(indices)},
          {"levels", levels},
          {"again", fsp->level_indices_to_indices(levels)}};
}

// Training
// -----------------------------------------------------------------------------------------------

void record(Tensors& results, const std::string& prefix, const Output& output) {
  for (const auto& [name, value] : output) results[prefix + name] = value.detach().clone();
}

template <typename Subject>
void run(Subject subject, const std::string& cast, const Given& in, const std::string& to) {
  auto& module = subject.module;
  Tensors results;
  if (!cast.empty()) module->to(dtype_of(cast));
  load_state_dict(*module, in.state);
  for (int step = 0; in.find(std::to_string(step) + ".x"); ++step) {
    const auto prefix = std::to_string(step) + ".";
    const auto x = in.tensors.at(prefix + "x").clone().requires_grad_();
    const auto output = forward(subject, x, in.find(prefix + "mask"));
    record(results, prefix, output);
    const auto weighted = output.at("output").to(torch::kFloat) * in.tensors.at(prefix + "weight");
    (output.at("loss").sum() + weighted.sum()).backward();
    descend(*module, x, prefix, results);
  }
  module->eval();
  const auto& x = in.tensors.at("eval.x");
  const auto output = forward(subject, x, std::nullopt);
  record(results, "eval.", output);
  record(results, "eval.", others(subject, x, output.at("indices")));
  save(*module, results, to);
}

void run(const std::string& from, const std::string& to, Words words) {
  const Given in(from);
  const auto name = take(words, "class"), cast = take(words, "cast");
  std::vector<int64_t> levels;
  parse(levels, take(words, "levels"));
  const auto finish = [&](auto subject) {
    TORCH_CHECK_VALUE(words.empty(), "scalar_run: no such option: ", words.begin()->first);
    run(std::move(subject), cast, in, to);
  };
  if (name == "BinaryMapper") {
    const auto options = with(BinaryMapperOptions(), kBinaryMapper, words);
    const auto call = with(BinaryMapperForwardOptions(), kBinaryMapperCall, words);
    finish(Binary{BinaryMapper(options), call});
  } else if (name == "LatentQuantize") {
    finish(
        Latent{LatentQuantize(with(LatentQuantizeOptions(levels, 1), kLatentQuantize, words)), {}});
  } else {
    const auto options = with(FSPOptions(levels), kFSP, words);
    const auto call = with(FSPForwardOptions(), kFSPCall, words);
    finish(Perturbed{FSP(options), call});
  }
}

}  // namespace
}  // namespace torchvq::testing::scalar_run

void torchvq::testing::run_scalar(const std::string& from, const std::string& to,
                                  const Words& words) {
  scalar_run::run(from, to, words);
}
