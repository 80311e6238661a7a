#include <torchvq/modules/vector_quantize.h>

#include <algorithm>
#include <ostream>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include <torchvq/functional/codebook.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/codebook_diversity_loss.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/orthogonal_loss.h>
#include <torchvq/ops/snapshot.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

/// What one forward was asked for, with the module's options filled in.
struct VectorQuantizeImpl::Call {
  const VectorQuantizeForwardOptions& options;
  std::optional<int64_t> topk;
  double temperature;
  bool frozen;
  bool ema_update;
};

VectorQuantizeImpl::VectorQuantizeImpl(VectorQuantizeOptions options_)
    : options(std::move(options_)) {
  reset();
}

void VectorQuantizeImpl::reset() {
  resolved_ = options.validate();
  const int64_t inner = options.codebook_dim().value_or(options.dim()) * options.heads();
  if (inner != options.dim()) {
    project_in = torch::nn::Linear(options.dim(), inner);
    if (options.layernorm_after_project_in()) {
      project_in_norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({inner}));
      register_module("project_in", torch::nn::Sequential(project_in, project_in_norm));
    } else {
      register_module("project_in", project_in);
    }
    project_out = register_module("project_out", torch::nn::Linear(inner, options.dim()));
  }
  codebook_state = register_module("_codebook", Codebook(options));
  if (options.in_place_codebook_optimizer()) {
    in_place_optimizer_ = options.in_place_codebook_optimizer()(codebook_state->parameters());
  }
}

void VectorQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::VectorQuantize(dim=" << options.dim()
         << ", codebook_size=" << options.codebook_size() << ", heads=" << options.heads()
         << ", metric=" << codebook_state->metric() << ")";
}

// Forward
// ---------------------------------------------------------------------------------------------------

VectorQuantizeOutput VectorQuantizeImpl::forward(const torch::Tensor& x,
                                                 const VectorQuantizeForwardOptions& call_options) {
  check_call(x, call_options);
  Call call{
      .options = call_options,
      .topk = call_options.topk(),
      .temperature = call_options.sample_codebook_temp().value_or(options.sample_codebook_temp()),
      .frozen = call_options.freeze_codebook().value_or(options.freeze_codebook()),
      .ema_update = call_options.ema_update().value_or(resolved_.ema_update),
  };
  if (call.topk) {
    call.topk = std::min(*call.topk, options.codebook_size());
  }
  const auto mask = token_mask(x, call_options.mask(), call_options.lens());
  auto tokens = F::pack_tokens(x, channel_first());
  if (mask) {
    // Padding may hold anything, NaN included; zeros keep it out of every gradient.
    tokens = F::fill_masked(tokens, *mask);
  }
  const auto real = head_mask(mask);
  const auto projected = project(tokens);
  codebook_state->prepare(projected, real,
                          is_training() && !(call.frozen && codebook_state->initialised()));

  auto table = search_codes(call, tokens, projected.scalar_type());
  torch::Tensor in_place;
  if (is_training() && in_place_optimizer_ && !call.frozen) {
    in_place = in_place_step(projected, table, real);
    table = search_codes(call, tokens, projected.scalar_type());
  }
  const bool sampling = is_training() && options.stochastic_sample_codes();
  const auto chosen =
      F::quantize(projected, table, codebook_state->rng, real,
                  F::QuantizeOptions()
                      .topk(call.topk)
                      .metric(codebook_state->metric())
                      .estimator(estimator())
                      .temperature(sampling ? std::optional(call.temperature) : std::nullopt)
                      .gradient_temperature(call.temperature)
                      .variance(options.directional_reparam_variance())
                      .sync_update_v(is_training() ? options.sync_update_v() : 0));

  const auto zero = chosen.inputs.new_zeros({});
  const auto or_zero = [&](const torch::Tensor& term) { return term.defined() ? term : zero; };
  LossBreakdown terms;
  terms.commitment =
      or_zero(commitment(chosen.inputs, chosen.codes, chosen.indices, table, real, call));
  if (terms.commitment.dim() > 0) {
    terms.commitment = restore_positions(terms.commitment, x);
  }
  terms.codebook_diversity = zero;
  if (is_training() && options.codebook_diversity_loss_weight() > 0) {
    terms.codebook_diversity =
        ops::codebook_diversity_loss(chosen.inputs, table, options.codebook_diversity_temperature(),
                                     codebook_state->metric(), real);
  }
  if (is_training() && !call.frozen && !call.topk) {
    codebook_state->learn(chosen.inputs, chosen.indices, real, call.ema_update,
                          call_options.accum_ema_update(), call_options.ema_update_weight());
  }
  terms.orthogonal_reg = zero;
  if (is_training() && options.orthogonal_reg_weight() > 0) {
    const auto active =
        options.orthogonal_reg_active_codes_only() ? OptionalTensor(chosen.indices) : std::nullopt;
    terms.orthogonal_reg = ops::orthogonal_loss(
        codebook_state->embed, active, options.orthogonal_reg_max_codes(), codebook_state->rng);
  }
  if (is_training() && projected.size(1) > 0) {
    F::advance_rng_(codebook_state->rng, real);
  }
  terms.inplace_optimize = or_zero(in_place);

  const auto loss =
      call_options.indices()
          ? F::weighted_loss({terms.commitment}, {1.0}, is_training())
          : F::weighted_loss({terms.commitment, terms.codebook_diversity, terms.orthogonal_reg},
                             {options.commitment_weight(), options.codebook_diversity_loss_weight(),
                              options.orthogonal_reg_weight()},
                             is_training());
  return {restore(chosen.quantized, tokens, x, mask), restore_positions(chosen.indices, x), loss,
          terms};
}

// Stages of forward
// -----------------------------------------------------------------------------------------

bool VectorQuantizeImpl::channel_first() const {
  return options.accept_image_fmap() || options.accept_3d_fmap() || !options.channel_last();
}

int64_t VectorQuantizeImpl::positions_rank(const torch::Tensor& x) const { return x.dim() - 2; }

void VectorQuantizeImpl::check_call(const torch::Tensor& x,
                                    const VectorQuantizeForwardOptions& call) const {
  detail::check_floating("VectorQuantize", "x", x);
  const int64_t rank = options.accept_3d_fmap() ? 5 : options.accept_image_fmap() ? 4 : 0;
  const auto* layout = rank == 5   ? "(B, dim, T, H, W)"
                       : rank == 4 ? "(B, dim, H, W)"
                                   : "(B, *, dim)";
  TORCH_CHECK_VALUE(x.dim() >= 2 && (rank == 0 || x.dim() == 2 || x.dim() == rank),
                    "VectorQuantize: expected x to have shape ", layout, ", but got shape ",
                    x.sizes());
  TORCH_CHECK_VALUE(x.size(channel_first() ? 1 : -1) == options.dim(),
                    "VectorQuantize: expected x to have ", options.dim(),
                    " features (dim), but got shape ", x.sizes());
  const auto topk = call.topk();
  TORCH_CHECK_VALUE(
      !topk || !is_training() ||
          !(options.commitment_use_cross_entropy_loss() || options.stochastic_sample_codes()),
      "VectorQuantize: expected topk in training without commitment_use_cross_entropy_loss and "
      "stochastic_sample_codes, but got topk ",
      topk.value_or(0), " with one of them");
  TORCH_CHECK_VALUE(!topk || (*topk >= 1 && options.heads() == 1 && !in_place_optimizer_),
                    "VectorQuantize: expected topk to be at least 1, with one head and no in-place "
                    "optimizer, but got "
                    "topk ",
                    topk.value_or(0), " with ", options.heads(), " heads");
}

OptionalTensor VectorQuantizeImpl::token_mask(const torch::Tensor& x, const OptionalTensor& mask,
                                              const OptionalTensor& lens) const {
  TORCH_CHECK_VALUE(!mask || !lens,
                    "VectorQuantize: expected mask or lens to be given, but got both");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.erase(channel_first() ? shape.begin() + 1 : shape.end() - 1);
  if (lens) {
    TORCH_CHECK_VALUE(
        positions_rank(x) == 1 && lens->dim() == 1 && lens->size(0) == x.size(0),
        "VectorQuantize: expected lens to have one length per sequence of x, but got shape ",
        lens->sizes(), " for x of shape ", x.sizes());
    return F::lens_to_mask(*lens, shape[1]);
  }
  if (!mask) {
    return std::nullopt;
  }
  detail::check_dtype("VectorQuantize", "mask", *mask, at::kBool);
  TORCH_CHECK_VALUE(mask->sizes() == at::IntArrayRef(shape),
                    "VectorQuantize: expected mask to have shape ", shape, ", but got ",
                    mask->sizes());
  return mask->dim() == 1 ? mask->unsqueeze(1) : mask->flatten(1);
}

OptionalTensor VectorQuantizeImpl::head_mask(const OptionalTensor& mask) const {
  return mask ? OptionalTensor(
                    F::split_mask(*mask, options.heads(), options.separate_codebook_per_head()))
              : std::nullopt;
}

torch::Tensor VectorQuantizeImpl::project(const torch::Tensor& tokens) {
  auto projected = tokens;
  if (project_in) {
    projected = project_in(tokens.to(project_in->weight.scalar_type()));
  }
  if (project_in_norm) {
    // Autocast may have given the projection another dtype, and the norm takes none but its own.
    projected = project_in_norm(projected.to(project_in_norm->weight.scalar_type()));
  }
  return F::split_heads(projected, options.heads(), options.separate_codebook_per_head());
}

torch::Tensor VectorQuantizeImpl::project_back(const torch::Tensor& tokens) {
  return project_out ? project_out(tokens.to(project_out->weight.scalar_type())) : tokens;
}

torch::Tensor VectorQuantizeImpl::search_codes(const Call& call, const torch::Tensor& tokens,
                                               torch::ScalarType dtype) {
  auto codes = codebook_state->codes();
  const auto& transform = call.options.codebook_transform_fn();
  if (!transform) {
    // The input decides how wide the arithmetic is, not a module that was made double.
    const bool narrow = codes.scalar_type() == torch::kDouble && dtype != torch::kDouble;
    return narrow ? codes.to(torch::kFloat) : codes;
  }
  codes = transform(ops::snapshot(codes));
  const int64_t heads = codebook_state->num_codebooks();
  TORCH_CHECK_VALUE(
      codes.dim() == 5 && codes.size(0) == heads,
      "VectorQuantize: expected codebook_transform_fn to return codes of each token of shape "
      "(H, B, N, K, D), but got shape ",
      codes.sizes());
  const int64_t rows = tokens.size(0) * tokens.size(1) * options.heads() / heads;
  return codes.reshape({heads, rows, codes.size(3), codes.size(4)});
}

torch::Tensor VectorQuantizeImpl::in_place_step(const torch::Tensor& projected,
                                                const torch::Tensor& codes,
                                                const OptionalTensor& mask) {
  at::AutoGradMode enable_grad(true);
  const auto chosen =
      F::quantize(projected.detach(), codes, codebook_state->rng, std::nullopt,
                  F::QuantizeOptions().metric(codebook_state->metric()).estimator("none"));
  const auto loss = ops::commitment_loss(chosen.inputs, chosen.codes, mask);
  loss.backward();
  if (!options.manual_in_place_optimizer_update()) {
    update_in_place_optimizer();
  }
  return loss.detach();
}

std::string VectorQuantizeImpl::estimator() const {
  if (!is_training()) {
    return "none";
  }
  if (!options.route_gradients_to_input()) {
    return options.straight_through() ? "gumbel" : "none";
  }
  if (options.directional_reparam()) {
    return "directional_reparam";
  }
  return resolved_.rotation_trick ? "rotation_trick" : "straight_through";
}

torch::Tensor VectorQuantizeImpl::commitment(const torch::Tensor& inputs, torch::Tensor codes,
                                             const torch::Tensor& indices,
                                             const torch::Tensor& table, const OptionalTensor& mask,
                                             const Call& call) {
  const auto metric = codebook_state->metric();
  if (call.options.indices()) {
    const auto targets = F::split_indices(*call.options.indices(), options.heads(),
                                          options.separate_codebook_per_head());
    return ops::commitment_cross_entropy(inputs, table, targets, metric, mask);
  }
  if (options.commitment_weight() == 0 || options.directional_reparam()) {
    return {};
  }
  if (!resolved_.learnable_codebook || call.frozen) {
    codes = codes.detach();
  }
  if (call.topk) {
    return F::candidate_commitment_loss(inputs, codes, mask);
  }
  if (!is_training()) {
    return {};
  }
  return options.commitment_use_cross_entropy_loss()
             ? ops::commitment_cross_entropy(inputs, table, indices, metric, mask)
             : ops::commitment_loss(inputs, codes, mask);
}

torch::Tensor VectorQuantizeImpl::restore(const torch::Tensor& quantized,
                                          const torch::Tensor& tokens, const torch::Tensor& x,
                                          const OptionalTensor& mask) {
  auto merged = F::merge_heads(quantized, tokens.sym_size(0), tokens.sym_size(1), options.heads(),
                               options.separate_codebook_per_head());
  // (B, N, heads, D) to (B, N, heads * D); with candidates (B, N, 1, k, D) to (B, N, k, D).
  merged = quantized.dim() == 3 ? merged.flatten(2) : merged.squeeze(2);
  auto output = project_back(merged).to(x.scalar_type());
  if (mask) {
    const auto padding = options.return_zeros_for_masked_padding()
                             ? std::nullopt
                             : OptionalTensor(F::pack_tokens(x, channel_first()));
    output = F::fill_padding(output, *mask, padding);
  }
  return F::unpack_tokens(output, x.sym_sizes(), channel_first());
}

torch::Tensor VectorQuantizeImpl::restore_positions(const torch::Tensor& values,
                                                    const torch::Tensor& x) const {
  const auto tokens = F::pack_tokens(x, channel_first()).sym_size(1);
  auto merged = F::merge_heads(values, x.sym_size(0), tokens, options.heads(),
                               options.separate_codebook_per_head());
  if (options.heads() == 1) {
    merged = merged.squeeze(2);
  }
  return F::unpack_positions(merged, x.sym_sizes(), channel_first());
}

// Codes
// -----------------------------------------------------------------------------------------------------

torch::Tensor VectorQuantizeImpl::codebook() {
  const auto codes = codebook_state->codes();
  return options.separate_codebook_per_head() ? codes : codes.squeeze(0);
}

void VectorQuantizeImpl::set_codebook(const torch::Tensor& codes) {
  const auto shape = codebook_state->embed.sizes();
  TORCH_CHECK_VALUE(codes.sizes() == shape || codes.sizes() == shape.slice(1),
                    "VectorQuantize: expected codebook to have shape ", shape, ", but got ",
                    codes.sizes());
  codebook_state->set_codes(codes);
}

torch::Tensor VectorQuantizeImpl::decode(const torch::Tensor& indices) {
  const bool separate = options.separate_codebook_per_head();
  auto codes = ops::lookup_codes(codebook_state->codes(),
                                 F::split_indices(indices, options.heads(), separate));
  auto shape = indices.sizes().vec();
  if (options.heads() > 1) {
    shape.pop_back();
  }
  shape.push_back(codes.size(2) * options.heads());
  return (separate ? codes.transpose(0, 1) : codes).reshape(shape);
}

torch::Tensor VectorQuantizeImpl::get_codes_from_indices(const torch::Tensor& indices) {
  const auto codes = decode(indices);
  return channel_first() ? codes.movedim(-1, 1) : codes;
}

torch::Tensor VectorQuantizeImpl::get_output_from_indices(const torch::Tensor& indices) {
  auto output = project_back(decode(indices));
  if (project_out) {
    // Masked tokens have no output; the bias of the projection would give them one.
    const auto absent = options.heads() == 1 ? indices.lt(0) : indices.lt(0).all(-1);
    output = output.masked_fill(absent.unsqueeze(-1), 0);
  }
  return channel_first() ? output.movedim(-1, 1) : output;
}

// Learning outside of forward
// -------------------------------------------------------------------------------

void VectorQuantizeImpl::update_ema_indices(const torch::Tensor& x, const torch::Tensor& indices,
                                            const OptionalTensor& mask) {
  if (!resolved_.ema_update) {
    return;
  }
  at::NoGradGuard no_grad;
  auto inputs = project(F::pack_tokens(x, channel_first()));
  if (options.use_cosine_sim()) {
    inputs = ops::unit_vectors(inputs);
  }
  codebook_state->learn(
      inputs, F::split_indices(indices, options.heads(), options.separate_codebook_per_head()),
      head_mask(token_mask(x, mask, std::nullopt)), /*ema_update=*/true);
}

void VectorQuantizeImpl::expire_codes_(const torch::Tensor& x) {
  at::NoGradGuard no_grad;
  auto inputs = F::split_heads(x, options.heads(), options.separate_codebook_per_head());
  if (options.use_cosine_sim()) {
    inputs = ops::unit_vectors(inputs);
  }
  codebook_state->replace_dead_codes(inputs, torch::zeros_like(codebook_state->cooldown),
                                     std::nullopt);
  F::advance_rng_(codebook_state->rng);
}

void VectorQuantizeImpl::update_in_place_optimizer() {
  if (in_place_optimizer_) {
    in_place_optimizer_->step();
    in_place_optimizer_->zero_grad();
  }
}

}  // namespace torchvq
