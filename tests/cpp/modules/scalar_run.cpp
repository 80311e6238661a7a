// Trains a BinaryMapper, LatentQuantize or FSP on tensors from a file, for
// tests/python/test_scalar_modules_cpp.py, which does the same in Python and compares every bit.
//
//   torchvq_run scalar IN OUT class=FSP levels=[8,5,5] [option=value ...] [cast=half]
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

// Words -------------------------------------------------------------------------------------------

template <typename Options>
Options with(Options options, Words& words) {
  take_options(options, words);
  return options;
}

BinaryMapperForwardOptions binary_mapper_call(Words& words) {
  BinaryMapperForwardOptions call;
  const auto flag = [&](const char* name, auto&& field) {
    if (words.contains(name)) field = take_flag(words, name);
  };
  flag("straight_through", call.straight_through());
  flag("calc_aux_loss", call.calc_aux_loss());
  flag("deterministic", call.deterministic());
  flag("reduce_aux_kl_loss", call.reduce_aux_kl_loss());
  if (words.contains("temperature")) call.temperature(std::stod(take(words, "temperature")));
  return call;
}

FSPForwardOptions fsp_call(Words& words) {
  FSPForwardOptions call;
  if (words.contains("eps")) call.eps(std::stod(take(words, "eps")));
  return call;
}

// Modules -----------------------------------------------------------------------------------------

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
  const auto codes = latent->indices_to_codes(indices, /*with_projection=*/false);
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

// Training ----------------------------------------------------------------------------------------

void record(Tensors& results, const std::string& prefix, const Output& output) {
  for (const auto& [name, value] : output) results[prefix + name] = value.detach().clone();
}

template <typename Subject>
void run(Subject subject, const std::string& cast, const Given& in, const std::string& to) {
  auto& module = subject.module;
  Tensors results;
  if (!cast.empty()) module->to(dtype_of(cast));
  load(*module, in);
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
  const auto finish = [&](auto subject) {
    expect_none_left(words);
    run(std::move(subject), cast, in, to);
  };
  if (name == "BinaryMapper") {
    const auto options = with(BinaryMapperOptions(), words);
    finish(Binary{BinaryMapper(options), binary_mapper_call(words)});
  } else if (name == "LatentQuantize") {
    auto options = with(LatentQuantizeOptions(std::vector<int64_t>(), 1), words);
    if (options.in_place_codebook_optimizer()) options.in_place_codebook_optimizer(sgd());
    finish(Latent{LatentQuantize(options), {}});
  } else {
    const auto options = with(FSPOptions({}), words);
    finish(Perturbed{FSP(options), fsp_call(words)});
  }
}

}  // namespace
}  // namespace torchvq::testing::scalar_run

void torchvq::testing::run_scalar(const std::string& from, const std::string& to,
                                  const Words& words) {
  scalar_run::run(from, to, words);
}
