#include <torchvq/modules/codebook.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/init.h>

#include <torchvq/functional/codebook.h>
#include <torchvq/functional/wide_codes.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_finish_.h>
#include <torchvq/ops/ema_update_.h>
#include <torchvq/ops/replace_dead_codes_.h>
#include <torchvq/ops/snapshot.h>
#include <torchvq/ops/unit_vectors.h>

#include "modules/copy_tensors.h"

namespace torchvq {
namespace {

torch::Tensor flag(bool value) { return at::scalar_tensor(value, at::kBool); }

torch::Tensor fresh_rng() {
  const auto seed = at::randint(int64_t{1} << 62, {}, at::kLong);
  return at::stack({seed, at::zeros({}, at::kLong)});
}

}  // namespace

CodebookImpl::CodebookImpl(VectorQuantizeOptions options_) : options(std::move(options_)) {
  reset();
}

void CodebookImpl::reset() {
  const int64_t dim = options.codebook_dim().value_or(options.dim());
  auto initial = at::empty({num_codebooks(), options.codebook_size(), dim});
  torch::nn::init::kaiming_uniform_(initial, std::sqrt(0.0), torch::kFanIn, torch::kLeakyReLU);
  if (options.use_cosine_sim()) {
    initial = ops::unit_vectors(initial);
  }
  initted = register_buffer("initted", flag(!options.kmeans_init()));
  cluster_size =
      register_buffer("cluster_size", at::ones({num_codebooks(), options.codebook_size()}));
  embed_avg = register_buffer("embed_avg", initial.clone());
  register_embed(initial);
  if (options.affine_param()) {
    register_affine(dim);
  }
  cooldown =
      register_buffer("cooldown", at::zeros({num_codebooks(), options.codebook_size()}, at::kLong));
  rng = register_buffer("rng", fresh_rng());
  if (!options.vq_bridge().is_empty()) {
    register_module("vq_bridge", options.vq_bridge().ptr());
  }
}

void CodebookImpl::register_embed(const torch::Tensor& initial) {
  embed = learns_by_gradient() ? register_parameter("embed", initial)
                               : register_buffer("embed", initial);
}

void CodebookImpl::register_affine(int64_t dim) {
  const auto zeros = [&] { return at::zeros({num_codebooks(), 1, dim}); };
  batch_mean = register_buffer("batch_mean", zeros());
  batch_variance = register_buffer("batch_variance", zeros().add(1));
  codebook_mean = register_buffer("codebook_mean", zeros());
  codebook_variance = register_buffer("codebook_variance", zeros().add(1));
  batch_mean_needs_init = register_buffer("batch_mean_needs_init", flag(true));
  batch_variance_needs_init = register_buffer("batch_variance_needs_init", flag(true));
  codebook_mean_needs_init = register_buffer("codebook_mean_needs_init", flag(true));
  codebook_variance_needs_init = register_buffer("codebook_variance_needs_init", flag(true));
}

void CodebookImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::Codebook(codebooks=" << num_codebooks()
         << ", codebook_size=" << options.codebook_size() << ", dim=" << embed.size(2)
         << ", metric=" << metric() << ")";
}

// Casts
// -----------------------------------------------------------------------------------------------------

template <typename Cast>
void CodebookImpl::keep_state(const Cast& cast) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before;
  for (auto& buffer : buffers(/*recurse=*/false)) {
    before.emplace_back(buffer, buffer.variable_data());
  }
  cast();
  for (auto& [buffer, old] : before) {
    // libtorch's casts reach flags, counts and the generator's seed, too.
    if (!old.is_floating_point() || buffer.scalar_type() == at::kHalf ||
        buffer.scalar_type() == at::kBFloat16) {
      buffer.set_data(old.to(buffer.device()));
    }
  }
}

void CodebookImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  keep_state([&] { torch::nn::Module::to(device, dtype, non_blocking); });
}

void CodebookImpl::to(torch::Dtype dtype, bool non_blocking) {
  keep_state([&] { torch::nn::Module::to(dtype, non_blocking); });
}

void CodebookImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

// Reading
// ---------------------------------------------------------------------------------------------------

bool CodebookImpl::has_dead_code_replacement() const {
  return options.threshold_ema_dead_code() > 0 || options.dead_code_threshold_fraction() > 0;
}

bool CodebookImpl::learns_by_gradient() const {
  return options.validate().learnable_codebook || options.orthogonal_reg_weight() > 0;
}

int64_t CodebookImpl::cooldown_steps() const {
  return options.vqp_compat()
             ? 0
             : static_cast<int64_t>(std::ceil(1 / std::max(1 - options.decay(), 1e-3)));
}

std::string CodebookImpl::metric() const {
  return options.use_cosine_sim() ? "cosine" : "euclidean";
}

int64_t CodebookImpl::num_codebooks() const {
  return options.separate_codebook_per_head() ? options.heads() : 1;
}

bool CodebookImpl::initialised() const { return !options.kmeans_init() || initted.item<bool>(); }

torch::Tensor CodebookImpl::codes() {
  auto codes = embed;
  if (!options.vq_bridge().is_empty()) {
    // A copy, because this step may replace dead codes before backward has used them.
    codes = options.vq_bridge().forward(ops::snapshot(codes));
    TORCH_CHECK_VALUE(codes.sizes() == embed.sizes(),
                      "VectorQuantize: expected vq_bridge to return codes of shape ", embed.sizes(),
                      ", but got ", codes.sizes());
  }
  if (options.affine_param()) {
    codes = functional::affine_codes(codes, batch_mean, batch_variance, codebook_mean,
                                     codebook_variance);
  }
  return codes;
}

// Learning
// --------------------------------------------------------------------------------------------------

void CodebookImpl::prepare(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                           bool training) {
  if (!training) {
    if (!warned_uninitialised_ && !initialised()) {
      warned_uninitialised_ = true;
      TORCH_WARN(
          "VectorQuantize: the codebook is evaluated before k-means has initialised it; its random "
          "codes are used. "
          "Run a training step, or load a checkpoint, first");
    }
    return;
  }
  if (x.size(1) > 0 && !initialised()) {
    const auto wide = wide_embed();
    functional::initialise_codebook_(initted, cluster_size, embed_avg, wide, x.detach(), rng, mask,
                                     functional::InitialiseCodebookOptions()
                                         .iterations(options.kmeans_iters())
                                         .metric(metric()));
    store_embed(wide);
  }
  if (options.affine_param()) {
    update_affine(x.detach(), mask);
  }
}

torch::Tensor CodebookImpl::wide_embed() const {
  if (embed.scalar_type() == embed_avg.scalar_type()) {
    return embed.detach();
  }
  return functional::wide_codes(embed.detach(), cluster_size, embed_avg, options.eps(), metric());
}

void CodebookImpl::store_embed(const torch::Tensor& wide) {
  if (embed.scalar_type() != wide.scalar_type()) {
    // The operators write float state; a parameter in half precision gets it rounded.
    embed.detach().copy_(wide);
  }
}

void CodebookImpl::update_affine(const torch::Tensor& x, const std::optional<torch::Tensor>& mask) {
  functional::update_affine_(batch_mean, batch_variance, batch_mean_needs_init,
                             batch_variance_needs_init, x, mask,
                             options.affine_param_batch_decay());
  // A step without tokens changes nothing, the statistics of the codes included.
  const auto present = functional::has_tokens(x, mask).expand({-1, options.codebook_size()});
  functional::update_affine_(codebook_mean, codebook_variance, codebook_mean_needs_init,
                             codebook_variance_needs_init, embed.detach(), present,
                             options.affine_param_codebook_decay());
}

void CodebookImpl::learn(const torch::Tensor& x, const torch::Tensor& indices,
                         const std::optional<torch::Tensor>& mask, bool ema_update, bool accumulate,
                         const std::optional<torch::Tensor>& weight) {
  if (!ema_update && !accumulate && !has_dead_code_replacement()) {
    return;
  }
  auto inputs = x.detach();
  if (options.affine_param()) {
    inputs = functional::affine_inputs(inputs, batch_mean, batch_variance, codebook_mean,
                                       codebook_variance);
  }
  const auto wide = wide_embed();
  auto statistics = ops::code_statistics(inputs, indices, ops::code_exponents(wide), mask);
  if (pending_) {
    statistics = std::apply(functional::merge_statistics, std::tuple_cat(*pending_, statistics));
    pending_.reset();
  }
  if (accumulate) {
    pending_ = statistics;
    return;
  }
  const auto& [counts, sums, exponents] = statistics;
  const bool finish = ema_update && !options.manual_ema_update();
  const bool compat = options.vqp_compat();
  ops::ema_update_(
      cluster_size, embed_avg, wide, counts, sums, exponents,
      {.decay = options.decay(),
       .eps = options.eps(),
       .metric = metric(),
       .weight = weight ? std::optional(weight->to(cluster_size.options())) : std::nullopt,
       .from_codebook = learns_by_gradient() && ema_update && !compat,
       .finish = finish && !compat});
  store_embed(wide);
  if (finish && compat) {
    update_ema();
  }
  replace_dead_codes(inputs, counts, mask);
}

void CodebookImpl::replace_dead_codes(const torch::Tensor& x, const torch::Tensor& counts,
                                      const std::optional<torch::Tensor>& mask) {
  if (!has_dead_code_replacement()) {
    return;
  }
  const auto wide = wide_embed();
  // In the reference a code may be replaced in the very step that used it.
  ops::replace_dead_codes_(wide, embed_avg, cluster_size, cooldown, x,
                           options.vqp_compat() ? at::zeros_like(counts) : counts, rng, mask,
                           {.threshold = options.threshold_ema_dead_code(),
                            .threshold_fraction = options.dead_code_threshold_fraction(),
                            .reset_cluster_size = options.threshold_ema_dead_code(),
                            .cooldown_steps = cooldown_steps(),
                            .metric = metric()});
  store_embed(wide);
}

void CodebookImpl::update_ema() {
  const auto wide = wide_embed();
  ops::ema_finish_(wide, cluster_size, embed_avg, options.eps(), metric());
  store_embed(wide);
}

void CodebookImpl::set_codes(const torch::Tensor& codes) {
  at::NoGradGuard no_grad;
  embed.copy_(codes);
  embed_avg.copy_(embed);
  cluster_size.fill_(1);
  cooldown.zero_();
  initted.fill_(true);
  pending_.reset();
}

// Copies and checkpoints
// ----------------------------------------------------------------------------------------------

std::shared_ptr<torch::nn::Module> CodebookImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = options;
  own.vq_bridge(own.vq_bridge().clone(device));
  auto copy = std::make_shared<CodebookImpl>(std::move(own));
  copy->copy_state(*this, device);
  return copy;
}

void CodebookImpl::copy_state(const CodebookImpl& other,
                              const std::optional<torch::Device>& device) {
  detail::copy_tensors(other, *this, device);
  pending_ = other.pending_;
  warned_uninitialised_ = other.warned_uninitialised_;
  if (pending_ && device) {
    auto& [counts, sums, exponents] = *pending_;
    pending_ = Statistics(counts.to(*device), sums.to(*device), exponents.to(*device));
  }
}

void CodebookImpl::load(torch::serialize::InputArchive& archive) {
  torch::nn::Module::load(archive);
  state_loaded();
}

bool CodebookImpl::is_optional_state(const std::string& name) {
  return name == "rng" || name == "cooldown" || name.starts_with("batch_") ||
         name.starts_with("codebook_");
}

void CodebookImpl::state_loaded(const std::vector<std::string>& missing) {
  const at::NoGradGuard no_grad;
  for (const auto& name : missing) {
    restore_default(name);
  }
  const auto lacks = [&](const std::string& name) {
    return std::find(missing.begin(), missing.end(), name) != missing.end();
  };
  for (const std::string name :
       {"batch_mean", "batch_variance", "codebook_mean", "codebook_variance"}) {
    // The reference has no flag for statistics that it creates in its first step.
    if (options.affine_param() && lacks(name + "_needs_init") && !lacks(name)) {
      named_buffers(/*recurse=*/false)[name + "_needs_init"].fill_(false);
    }
  }
  pending_.reset();
}

void CodebookImpl::restore_default(const std::string& name) {
  auto buffer = named_buffers(/*recurse=*/false)[name];
  if (name == "rng") {
    buffer.select(0, 1).zero_();  // the seed drawn at construction stays
  } else {
    buffer.fill_(name.ends_with("_needs_init") || name.ends_with("_variance") ? 1 : 0);
  }
}

}  // namespace torchvq
