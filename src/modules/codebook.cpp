#include <torchvq/modules/codebook.h>

#include <atomic>
#include <cmath>
#include <ostream>
#include <sstream>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/init.h>

#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/ops/ema_finish_.h>
#include <torchvq/ops/snapshot.h>
#include <torchvq/ops/unit_vectors.h>

#include "modules/copy_tensors.h"
#include "modules/random_state.h"
#include "modules/seen_flag.h"
#include "options/text.h"

namespace torchvq {
namespace {

torch::Tensor flag(bool value) { return at::scalar_tensor(value, at::kBool); }

/// The counters (H,) of replaced codes before any step, for cluster sizes (H, K).
torch::Tensor no_replacements(const torch::Tensor& cluster_size) {
  return at::zeros_like(cluster_size.select(1, 0), at::kLong);
}

}  // namespace

CodebookImpl::CodebookImpl(VectorQuantizeOptions options_, bool owns_bridge)
    : options(std::move(options_)),
      built_from_(options),
      owns_bridge_(owns_bridge),
      handle_(distributed::new_handle()),
      seen_initted_(std::make_shared<detail::SeenFlag>()) {
  TORCH_CHECK_VALUE(!options.overlap_sync(),
                    "VectorQuantize: expected overlap_sync to be false in C++, where reads of the "
                    "state cannot be intercepted, but got true");
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
  reset_replaced();
  rng = register_buffer("rng", detail::fresh_rng());
  if (options.sync_every() > 1) {
    register_kept(dim);
  }
  if (!options.vq_bridge().is_empty() && owns_bridge_) {
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

void CodebookImpl::register_kept(int64_t dim) {
  const int64_t heads = num_codebooks(), size = options.codebook_size();
  kept_steps = register_buffer("kept_steps", at::zeros({4}, at::kLong));
  kept_counts = register_buffer("kept_counts", at::zeros({heads, size}, at::kLong));
  kept_sums = register_buffer("kept_sums", at::zeros({2, heads, size, dim}, at::kLong));
  kept_exponents = register_buffer("kept_exponents", at::zeros({2, heads, size}, at::kInt));
  const int64_t candidates = has_dead_code_replacement() ? size : 0;
  kept_candidates = register_buffer("kept_candidates", at::zeros({heads, candidates, 1 + dim}));
}

void CodebookImpl::forget_kept() {
  pending_.reset();
  if (!kept_steps.defined()) return;
  // The number of reductions is kept, because the next random draws depend on it.
  kept_steps.slice(0, 0, 2).zero_();
  kept_counts.zero_();
  kept_sums.zero_();
  kept_candidates.zero_();
}

void CodebookImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::Codebook(codebooks=" << num_codebooks()
         << ", codebook_size=" << options.codebook_size() << ", dim=" << embed.size(2)
         << ", metric=" << metric() << ")";
}

// Reading -----------------------------------------------------------------------------------------

bool CodebookImpl::has_dead_code_replacement() const {
  return options.threshold_ema_dead_code() > 0 || options.dead_code_threshold_fraction() > 0;
}

bool CodebookImpl::learns_by_gradient() const {
  return options.validate().learnable_codebook || options.orthogonal_reg_weight() > 0;
}

std::string CodebookImpl::metric() const {
  return options.use_cosine_sim() ? "cosine" : "euclidean";
}

int64_t CodebookImpl::num_codebooks() const {
  return options.separate_codebook_per_head() ? options.heads() : 1;
}

bool CodebookImpl::initialised() const {
  if (!options.kmeans_init()) return true;
  return seen_initted_->holds(initted, [](const at::Tensor& flag) { return flag.item<bool>(); });
}

const torch::Tensor& CodebookImpl::checked_embed() const {
  check_embed(embed.dim() == 3 && embed.size(0) == num_codebooks());
  return embed;
}

void CodebookImpl::check_averages() const {
  checked_embed();
  // Operators name the averages if it is those that have another shape than the options say.
  check_embed(embed.sizes() == embed_avg.sizes() || embed.size(1) == options.codebook_size());
}

void CodebookImpl::check_embed(bool fits) const {
  TORCH_CHECK_VALUE(
      fits, "VectorQuantize: expected embed to have the shape (heads, codebook_size, dim), ",
      at::IntArrayRef({num_codebooks(), options.codebook_size(), embed_avg.size(-1)}), ", but got ",
      embed.sizes(), "; call set_codebook() to replace codes");
}

bool CodebookImpl::keeps_statistics() const {
  const bool keeps = options.sync_every() > 1;
  TORCH_CHECK_VALUE(!keeps || kept_steps.defined(),
                    "VectorQuantize: expected sync_every to be 1 as at construction, which makes "
                    "the state for more, but got ",
                    options.sync_every());
  return keeps;
}

torch::Tensor CodebookImpl::codes() {
  auto codes = checked_embed();
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

torch::Tensor CodebookImpl::wide_embed() const {
  return functional::wide_embed({embed, cluster_size, embed_avg, {}, rng}, options.eps(), metric());
}

void CodebookImpl::store_embed(const torch::Tensor& wide) {
  if (embed.scalar_type() != wide.scalar_type()) {
    // The operators write float32 state; a half-precision parameter gets the rounded values.
    embed.detach().copy_(wide);
  }
}

std::vector<torch::Tensor> CodebookImpl::learned_parameters() const {
  auto found = parameters();
  for (const auto& [name, bridge] : borrowed_modules()) {
    const auto more = bridge->parameters();
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
CodebookImpl::borrowed_modules() const {
  if (owns_bridge_ || options.vq_bridge().is_empty()) {
    return {};
  }
  return {{"vq_bridge", options.vq_bridge().ptr()}};
}

// State shared by ranks ---------------------------------------------------------------------------

std::vector<torch::Tensor> CodebookImpl::replicated_state() const {
  std::vector<torch::Tensor> state{initted, cluster_size, embed_avg, embed.detach(), rng};
  if (options.affine_param() && options.sync_affine_param()) {
    for (const auto& statistics :
         {batch_mean, batch_variance, codebook_mean, codebook_variance, batch_mean_needs_init,
          batch_variance_needs_init, codebook_mean_needs_init, codebook_variance_needs_init}) {
      state.push_back(statistics);
    }
  }
  if (keeps_statistics()) {
    // All entries except the rank that accumulates.
    state.push_back(kept_steps.slice(0, 0, 3));
    state.push_back(kept_exponents.select(0, 0));
  }
  return state;
}

std::string CodebookImpl::signature() const {
  std::ostringstream text;
  text << std::boolalpha << num_codebooks() << " codebooks of " << options.codebook_size()
       << " codes of " << embed.size(2) << ", " << metric() << ", decay "
       << detail::option_text(options.decay()) << ", eps " << detail::option_text(options.eps())
       << ", dead codes below " << detail::option_text(options.threshold_ema_dead_code()) << " or "
       << detail::option_text(options.dead_code_threshold_fraction()) << " of the mean, manual "
       << options.manual_ema_update() << ", affine " << options.affine_param() << ", vqp_compat "
       << options.vqp_compat() << ", by gradient " << learns_by_gradient();
  if (keeps_statistics()) text << ", learning every " << options.sync_every() << " steps";
  return text.str();
}

// Learning ----------------------------------------------------------------------------------------

void CodebookImpl::prepare(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                           bool training, const distributed::Ranks& ranks) {
  checked_embed();
  if (!training) {
    // Several threads may evaluate one module.
    if (!initialised() && !std::atomic_ref(warned_uninitialised_).exchange(true)) {
      TORCH_WARN(
          "VectorQuantize: the codebook is evaluated before k-means has initialised it; its random "
          "codes are used. "
          "Run a training step, or load a checkpoint, first");
    }
    return;
  }
  keeps_statistics();  // checked before anything is written
  if ((!ranks.alone() || x.size(1) > 0) && !initialised()) {
    initialise(x, mask, ranks);
  }
  if (options.affine_param()) {
    update_affine(x.detach(), mask, ranks);
  }
}

void CodebookImpl::initialise(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                              const distributed::Ranks& ranks) {
  check_averages();
  const auto wide = wide_embed();
  auto kmeans = functional::InitialiseCodebookOptions()
                    .iterations(options.kmeans_iters())
                    .metric(metric())
                    .vqp_compat(options.vqp_compat());
  if (options.sync_kmeans()) {
    kmeans.group_name(ranks.group_name).label(ranks.label);
  }
  functional::initialise_codebook_(initted, cluster_size, embed_avg, wide, x.detach(), rng, mask,
                                   kmeans);
  if (!options.sync_kmeans() && !ranks.alone()) {
    // Each rank would start with different codes, so all ranks take those of rank 0.
    distributed::broadcast_state_({initted, cluster_size, embed_avg, wide}, ranks);
  }
  store_embed(wide);
}

void CodebookImpl::update_affine(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                                 const distributed::Ranks& ranks) {
  const auto tokens = functional::update_affine_(
      batch_mean, batch_variance, batch_mean_needs_init, batch_variance_needs_init, x, mask,
      options.affine_param_batch_decay(),
      options.sync_affine_param() ? ranks : distributed::Ranks());
  // A step without tokens changes nothing, not even the statistics of the codes.
  const auto present = tokens.gt(0).expand({-1, embed.size(1)});
  functional::update_affine_(codebook_mean, codebook_variance, codebook_mean_needs_init,
                             codebook_variance_needs_init, embed.detach(), present,
                             options.affine_param_codebook_decay());
}

bool CodebookImpl::learns(bool ema_update) const {
  return ema_update || has_dead_code_replacement();
}

std::vector<torch::Tensor> CodebookImpl::affine_state() const {
  return {batch_mean, batch_variance, codebook_mean, codebook_variance};
}

torch::Tensor CodebookImpl::raw_inputs(const torch::Tensor& x) const {
  const auto inputs = x.detach();
  return options.affine_param() ? functional::affine_inputs(inputs, batch_mean, batch_variance,
                                                            codebook_mean, codebook_variance)
                                : inputs;
}

torch::Tensor CodebookImpl::fresh_counts() const {
  // Codes that do not follow averages may have been given without these.
  return at::zeros({cluster_size.size(0), checked_embed().size(1)},
                   cluster_size.options().dtype(at::kLong));
}

functional::CodebookState CodebookImpl::state(bool learns) {
  // Threads may evaluate one module at the same time, so evaluation writes nothing.
  if (is_training()) {
    if (learns) check_averages();
    replaced = replaced.to(embed.device());
  }
  const bool moved = replaced.device() != embed.device();
  const auto count = moved ? no_replacements(cluster_size) : replaced;
  functional::CodebookState state{embed, cluster_size, embed_avg, count, rng};
  if (keeps_statistics()) {
    state.kept = {kept_steps, kept_counts, kept_sums, kept_exponents, kept_candidates};
  }
  return state;
}

functional::LearnCodebooksOptions CodebookImpl::learning(bool ema_update,
                                                         const distributed::Ranks& ranks,
                                                         bool accumulate) const {
  return functional::LearnCodebooksOptions()
      .decay(options.decay())
      .eps(options.eps())
      .metric(metric())
      .ema_update(ema_update || accumulate)
      .manual_ema_update(options.manual_ema_update())
      .by_gradient(learns_by_gradient())
      .threshold(options.threshold_ema_dead_code())
      .threshold_fraction(options.dead_code_threshold_fraction())
      .reset_cluster_size(options.threshold_ema_dead_code())
      .vqp_compat(options.vqp_compat())
      .sync_every(keeps_statistics() && accumulate ? 0 : options.sync_every())
      .ranks(ranks)
      .signature(ranks.alone() ? "" : signature());
}

void CodebookImpl::reset_replaced() { replaced = no_replacements(cluster_size); }

std::optional<torch::Tensor> CodebookImpl::learn(const torch::Tensor& x,
                                                 const torch::Tensor& indices,
                                                 const std::optional<torch::Tensor>& mask,
                                                 bool ema_update, bool accumulate,
                                                 const std::optional<torch::Tensor>& weight,
                                                 const distributed::Ranks& ranks) {
  if (!learns(ema_update || accumulate)) {
    return std::nullopt;
  }
  check_averages();
  auto how = learning(ema_update, ranks, accumulate);
  // Outside of training, as for update_ema_indices(), the averages move and no code is replaced.
  if (!is_training()) how.threshold(0).threshold_fraction(0);
  const std::vector<functional::StepTokens> tokens{{raw_inputs(x), indices, mask}};
  if (!learns_apart(accumulate)) {
    return functional::learn_codebooks_({state()}, tokens, how, weight)[0];
  }
  const auto [counts, sums, exponents] = functional::collect_statistics({state()}, tokens, how)[0];
  auto statistics = Statistics(counts, sums, exponents);
  if (pending_) {
    statistics = std::apply(functional::merge_statistics, std::tuple_cat(*pending_, statistics));
  }
  if (accumulate) {
    pending_ = statistics;
  } else {
    const auto& [all_counts, all_sums, common] = statistics;
    functional::learn_from_statistics_({state()}, tokens, {{all_counts, all_sums, common}}, how,
                                       weight);
    pending_.reset();  // not earlier: if the update fails, the next step takes them
  }
  return counts;
}

void CodebookImpl::expire_codes(const torch::Tensor& x, const distributed::Ranks& ranks) {
  functional::expire_codes_({state()}, {raw_inputs(x)}, learning(/*ema_update=*/false, ranks));
}

void CodebookImpl::update_ema() {
  check_averages();
  const auto wide = wide_embed();
  // The reference recomputes unused codes like all others, so they drift to the origin.
  const double decay = options.vqp_compat() ? 1 : options.decay();
  ops::ema_finish_(wide, cluster_size, embed_avg,
                   {.decay = decay, .eps = options.eps(), .metric = metric()});
  store_embed(wide);
}

void CodebookImpl::set_codes(const torch::Tensor& codes) {
  at::NoGradGuard no_grad;
  const auto values = codes.clone();  // a copy, because the codes may be a view of these
  if (embed.sizes() != embed_avg.sizes())
    embed.set_data(at::empty_like(embed_avg, embed.options()));
  embed.copy_(values);
  // In the reference the averages do not change, and the next update undoes the assignment.
  if (options.vqp_compat()) return;
  embed_avg.copy_(embed);
  cluster_size.fill_(1);
  initted.fill_(true);
  forget_kept();
}

void CodebookImpl::move_codes(const torch::Tensor& codes) {
  at::NoGradGuard no_grad;
  const auto wide = wide_embed();
  wide.copy_(codes);
  store_embed(wide);
  embed_avg.copy_(functional::averages_of_codes(wide, cluster_size, options.eps()));
  forget_kept();
}

// Copies and checkpoints --------------------------------------------------------------------------

std::shared_ptr<torch::nn::Module> CodebookImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  own.vq_bridge(own.vq_bridge().clone(device));
  auto copy = std::make_shared<CodebookImpl>(std::move(own), owns_bridge_);
  copy->copy_state(*this, device);
  return copy;
}

void CodebookImpl::copy_state(const CodebookImpl& other,
                              const std::optional<torch::Device>& device) {
  detail::copy_tensors(other, *this, device);
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.vq_bridge(); });
  pending_ = other.pending_;
  replaced = other.replaced.clone();
  warned_uninitialised_ = other.warned_uninitialised_;
  if (pending_ && device) {
    auto& [counts, sums, exponents] = *pending_;
    pending_ = Statistics(counts.to(*device), sums.to(*device), exponents.to(*device));
  }
}

void CodebookImpl::load(torch::serialize::InputArchive& archive) {
  KeptBuffers<CodebookImpl>::load(archive);
  state_loaded();
}

bool CodebookImpl::is_optional_state(const std::string& name) {
  return name == "rng" || is_kept_state(name) || name.starts_with("batch_") ||
         name.starts_with("codebook_");
}

bool CodebookImpl::is_kept_state(const std::string& name) { return name.starts_with("kept_"); }

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
    if (!options.affine_param()) break;
    auto needs_init = named_buffers(/*recurse=*/false)[name + "_needs_init"];
    // The reference has no flag for statistics that it creates in its first step.
    if (lacks(name + "_needs_init") && !lacks(name)) needs_init.fill_(false);
    // It saves uninitialised memory for those that no step has set.
    if (!needs_init.is_meta() && needs_init.item<bool>()) restore_default(name);
  }
  pending_.reset();
  reset_replaced();
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
