#include <torchvq/modules/vector_quantize.h>

#include <algorithm>
#include <ostream>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/nn/modules/container/sequential.h>

#include <torchvq/functional/codebook.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/snapshot.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "modules/copy_tensors.h"
#include "modules/vector_quantize_call.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// Applies a projection in its own dtype, whatever dtype the tokens have; autocast, when on,
/// decides itself (but leaves float64 as it is). Not by the layer's forward, which libtorch splits
/// into product and sum: half precision would be rounded twice, where Python rounds once.
torch::Tensor apply_linear(const torch::nn::Linear& layer, const torch::Tensor& tokens) {
  const auto dtype = layer->weight.scalar_type();
  const bool decides = at::autocast::is_autocast_enabled(tokens.device().type()) &&
                       tokens.scalar_type() != torch::kDouble && dtype != torch::kDouble;
  return at::linear(decides ? tokens : tokens.to(dtype), layer->weight, layer->bias);
}

}  // namespace

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

std::shared_ptr<torch::nn::Module> VectorQuantizeImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = options;
  own.vq_bridge(own.vq_bridge().clone(device));
  auto copy = std::make_shared<VectorQuantizeImpl>(std::move(own));
  detail::copy_tensors(*this, *copy, device);
  copy->codebook_state->copy_state(*codebook_state, device);
  copy->load_in_place_optimizer_state(in_place_optimizer_state());
  return copy;
}

// Forward
// ---------------------------------------------------------------------------------------------------

VectorQuantizeOutput VectorQuantizeImpl::forward(const torch::Tensor& x,
                                                 const VectorQuantizeForwardOptions& call_options) {
  check_call(x, call_options);
  const auto call = make_call(x, call_options);
  const auto& mask = call.mask;
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
  const auto [quantized, indices, codes, inputs] =
      F::quantize(projected, table, codebook_state->rng, real,
                  F::QuantizeOptions()
                      .topk(call.topk)
                      .metric(codebook_state->metric())
                      .estimator(estimator())
                      .temperature(sampling ? std::optional(call.temperature) : std::nullopt)
                      .gradient_temperature(call.temperature)
                      .variance(options.directional_reparam_variance())
                      .sync_update_v(is_training() ? options.sync_update_v() : 0));

  const Chosen chosen{tokens, table, real, inputs, codes, indices};
  const auto zero = inputs.new_zeros({});
  const auto or_zero = [&](const torch::Tensor& term) { return term.defined() ? term : zero; };
  LossBreakdown terms;
  terms.commitment = or_zero(commitment(chosen, call));
  terms.codebook_diversity = or_zero(diversity(chosen));
  if (is_training() && !call.frozen && !call.topk) {
    codebook_state->learn(inputs, indices, real, call.ema_update, call_options.accum_ema_update(),
                          call_options.ema_update_weight());
  }
  terms.orthogonal_reg = or_zero(orthogonal(indices));
  if (is_training() && projected.size(1) > 0) {
    F::advance_rng_(codebook_state->rng, real);
  }
  terms.inplace_optimize = or_zero(in_place);
  if (terms.commitment.dim() > 0) {
    terms.commitment = restore_positions(terms.commitment, x);
  }
  return {restore(quantized, tokens, x, mask), restore_positions(indices, x), total(terms, call),
          terms};
}

// Stages of forward
// -----------------------------------------------------------------------------------------

bool VectorQuantizeImpl::channel_first() const {
  return options.accept_image_fmap() || options.accept_3d_fmap() || !options.channel_last();
}

VectorQuantizeImpl::Call VectorQuantizeImpl::make_call(
    const torch::Tensor& x, const VectorQuantizeForwardOptions& call) const {
  const auto topk = call.topk();
  return {
      .options = call,
      .mask = token_mask(x, call.mask(), call.lens()),
      .topk = topk ? std::optional(std::min(*topk, options.codebook_size())) : std::nullopt,
      .temperature = call.sample_codebook_temp().value_or(options.sample_codebook_temp()),
      .frozen = call.freeze_codebook().value_or(options.freeze_codebook()),
      .ema_update = call.ema_update().value_or(resolved_.ema_update),
  };
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
    projected = apply_linear(project_in, tokens);
  }
  if (project_in_norm) {
    // Autocast may have given the projection another dtype, and the norm takes none but its own.
    projected = project_in_norm(projected.to(project_in_norm->weight.scalar_type()));
  }
  return F::split_heads(projected, options.heads(), options.separate_codebook_per_head());
}

torch::Tensor VectorQuantizeImpl::project_back(const torch::Tensor& tokens) {
  return project_out ? apply_linear(project_out, tokens) : tokens;
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
  if (!resolved_.rotation_trick) {
    return "straight_through";
  }
  return options.vqp_compat() ? "vqp_rotation_trick" : "rotation_trick";
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

}  // namespace torchvq
