#include <torchvq/modules/lfq.h>

#include <cmath>
#include <ostream>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/lookup_free.h>
#include <torchvq/functional/quantize_scalars.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/functional/vector_quantize.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/sample_token_mask.h>
#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>
#include <torchvq/ops/straight_through.h>

#include "modules/copy_tensors.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/random_state.h"
#include "modules/ranks.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

detail::Layout layout_of(const LFQImpl& lfq, int64_t axes) {
  return {.dim = lfq.dim(),
          .heads = lfq.options.num_codebooks(),
          .separate = true,
          .channel_first = lfq.options.channel_first().value_or(axes >= 4),
          .map_rank = 0,
          .owner = "LFQ"};
}

/// A mask per item as one per position.
OptionalTensor per_position(const torch::Tensor& x, bool channel_first,
                            const OptionalTensor& mask) {
  if (!mask || x.dim() < 3 || mask->sizes() != x.sizes().slice(0, 1)) return mask;
  std::vector<int64_t> column(static_cast<size_t>(x.dim() - 1), 1);
  column[0] = x.size(0);
  return mask->reshape(column).expand_as(x.select(channel_first ? 1 : -1, 0));
}

bool is_half(const torch::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

}  // namespace

CosineSimLinearImpl::CosineSimLinearImpl(int64_t dim_in_, int64_t dim_out_, double scale_)
    : dim_in(dim_in_), dim_out(dim_out_), scale(scale_) {
  reset();
}

void CosineSimLinearImpl::reset() {
  weight = register_parameter("weight", torch::randn({dim_in, dim_out}));
}

torch::Tensor CosineSimLinearImpl::forward(const torch::Tensor& x) {
  return F::cosine_linear(x, weight, scale);
}

LFQImpl::LFQImpl(LFQOptions options_, bool is_level)
    : options(std::move(options_)), is_level_(is_level), handle_(distributed::new_handle()) {
  reset();
  if (!is_level_) warn_if_unbounded();
}

void LFQImpl::warn_if_unbounded() const {
  const bool bounded = options.spherical() || options.cosine_sim_project_in() ||
                       options.soft_clamp_input_value().has_value();
  if (options.commitment_loss_weight() == 0 && options.entropy_loss_weight() > 0 && !bounded) {
    TORCH_WARN(
        "LFQ: commitment_loss_weight is 0, so nothing keeps latents from growing without bound; "
        "start with spherical, commitment_loss_weight 0.1 and entropy_loss_weight 0.005, or set "
        "one of the first two or soft_clamp_input_value");
  }
}

void LFQImpl::reset() {
  options.validate();
  bits_ = 0;
  if (const auto size = options.codebook_size()) {
    while ((int64_t{1} << bits_) < *size) ++bits_;
  } else {
    bits_ = options.dim().value_or(0);
  }
  const int64_t inner = bits_ * options.num_codebooks();
  if (has_projections()) {
    const bool bias = options.projection_has_bias();
    if (options.cosine_sim_project_in()) {
      const double scale = options.cosine_sim_project_in_scale().value_or(options.codebook_scale());
      cosine_in = register_module("project_in", CosineSimLinear(dim(), inner, scale));
    } else {
      linear_in = register_module(
          "project_in", torch::nn::Linear(torch::nn::LinearOptions(dim(), inner).bias(bias)));
    }
    project_out = register_module(
        "project_out", torch::nn::Linear(torch::nn::LinearOptions(inner, dim()).bias(bias)));
  }
  auto& activation = options.straight_through_activation();
  if (!activation.is_empty()) register_module("activation", activation.ptr());
  bit_values = register_buffer(
      "mask", at::ones({bits_}, at::kLong).bitwise_left_shift(at::arange(bits_ - 1, -1, -1)));
  if (options.orthogonal_rotation()) {
    orthogonal_rot = register_buffer("orthogonal_rot", F::random_rotation(bits_));
  }
  if (options.frac_per_sample_entropy() < 1 && !is_level_)
    rng = register_buffer("rng", detail::fresh_rng());
}

void LFQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::LFQ(dim=" << dim() << ", codebook_size=" << codebook_size()
         << ", num_codebooks=" << options.num_codebooks() << ")";
}

std::shared_ptr<torch::nn::Module> LFQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = options;
  own.straight_through_activation(own.straight_through_activation().clone(device));
  auto copy = std::make_shared<LFQImpl>(std::move(own), is_level_);
  detail::copy_tensors(*this, *copy, device);
  return copy;
}

bool LFQImpl::has_projections() const {
  return options.has_projections().value_or(dim() != bits_ * options.num_codebooks());
}

double LFQImpl::code_value() const {
  const double scale = options.codebook_scale();
  return options.spherical() ? scale / std::sqrt(static_cast<double>(bits_)) : scale;
}

// Forward -----------------------------------------------------------------------------------------

LookupFreeOutput LFQImpl::forward(const torch::Tensor& x, double inv_temperature,
                                  const OptionalTensor& mask) {
  const auto layout = layout_of(*this, x.dim());
  layout.check(x);
  const auto real = layout.token_mask(x, per_position(x, layout.channel_first, mask), std::nullopt);
  const auto ranks = group();
  shake_hands(ranks);
  auto tokens = layout.pack(x);
  // Padding may hold anything, NaN included; zeros keep it out of every gradient.
  if (real) tokens = F::fill_masked(tokens, *real);
  const auto signs = quantize(tokens, real, inv_temperature, draw_for(ranks));
  if (is_training() && rng.defined()) F::advance_rng_(rng);
  LookupFreeOutput output;
  OptionalTensor totals;
  if (!ranks.empty()) {
    totals = distributed::all_reduce_statistics(own_totals(signs), {ranks, label()});
  }
  add_losses(signs, totals, output);
  auto codes = output_codes(signs, tokens);
  if (project_out) codes = detail::apply_linear(project_out, codes);
  codes = codes.to(x.scalar_type());
  auto indices = signs.indices;
  if (real) codes = F::fill_padding(codes, *real);
  if (signs.mask) indices = indices.masked_fill(signs.mask->logical_not(), -1);
  output.quantized = layout.unpack(codes, x);
  output.indices = layout.restore_positions(indices, x);
  if (keeps_num_codebooks_dim() && options.num_codebooks() == 1) {
    output.indices = output.indices.unsqueeze(-1);
  }
  return output;
}

LFQImpl::Signs LFQImpl::quantize(const torch::Tensor& tokens, const OptionalTensor& mask,
                                 double inv_temperature, const torch::Tensor& draw) {
  auto projected = tokens;
  if (linear_in) projected = detail::apply_linear(linear_in, tokens);
  if (cosine_in) projected = cosine_in(tokens.to(cosine_in->weight.scalar_type()));
  // What makes latents of the projection, and the losses, is float32 arithmetic.
  if (is_half(projected)) projected = projected.to(at::kFloat);
  if (const auto limit = options.soft_clamp_input_value()) {
    projected = F::soft_clamp(projected, at::scalar_tensor(*limit, projected.options()));
  }
  const auto layout = layout_of(*this, tokens.dim());
  Signs signs;
  signs.inv_temperature = inv_temperature;
  signs.latents = layout.split_heads(projected);
  if (options.spherical()) signs.latents = F::on_sphere(signs.latents, options.codebook_scale());
  if (orthogonal_rot.defined()) {
    signs.latents = F::rotate_features(signs.latents, orthogonal_rot);
  }
  std::tie(signs.codes, signs.indices) = ops::sign_quantize(signs.latents, code_value());
  signs.mask = layout.split_mask(mask);
  signs.entropy_mask = signs.mask;
  if (draw.defined()) {
    signs.entropy_mask = ops::sample_token_mask(draw, signs.latents.size(1),
                                                options.frac_per_sample_entropy(), signs.mask);
  }
  return signs;
}

torch::Tensor LFQImpl::output_codes(const Signs& signs, const torch::Tensor& tokens) {
  auto codes = signs.codes;
  if (is_training()) {
    auto& activation = options.straight_through_activation();
    codes = ops::straight_through(
        activation.is_empty() ? signs.latents : activation.forward<torch::Tensor>(signs.latents),
        codes);
  }
  return join(codes, tokens);
}

torch::Tensor LFQImpl::join(const torch::Tensor& codes, const torch::Tensor& tokens) const {
  const auto back =
      orthogonal_rot.defined() ? F::rotate_features(codes, orthogonal_rot, true) : codes;
  return layout_of(*this, 3).merge_features(back, tokens.size(0), tokens.size(1));
}

torch::Tensor LFQImpl::own_totals(const Signs& signs) const {
  return ops::sign_entropy_totals(signs.latents.detach(), 4 * signs.inv_temperature * code_value(),
                                  signs.entropy_mask);
}

void LFQImpl::add_losses(const Signs& signs, const OptionalTensor& totals,
                         LookupFreeOutput& output) const {
  const auto zero = signs.latents.new_zeros({});
  output.entropy_aux_loss = zero;
  output.loss_breakdown = {zero, zero, zero};
  if (!is_training()) return;
  auto& terms = output.loss_breakdown;
  std::tie(terms.per_sample_entropy, terms.batch_entropy) = ops::sign_entropy(
      signs.latents, 4 * signs.inv_temperature * code_value(), signs.entropy_mask, totals);
  if (options.commitment_loss_weight() > 0) {
    terms.commitment = ops::commitment_loss(signs.latents, signs.codes, signs.mask);
  }
  F::LookupFreeWeights weights;
  weights.entropy = options.entropy_loss_weight();
  weights.diversity_gamma = options.diversity_gamma();
  weights.commitment = options.commitment_loss_weight();
  if (options.experimental_softplus_entropy_loss()) {
    weights.softplus_offset = options.entropy_loss_offset();
  }
  output.entropy_aux_loss =
      F::lookup_free_loss(terms.per_sample_entropy, terms.batch_entropy, terms.commitment, weights);
}

// Ranks -------------------------------------------------------------------------------------------

torch::Tensor LFQImpl::draw_for(const std::string& group) const {
  if (!is_training() || !rng.defined()) return {};
  detail::Ranks ranks;
  ranks.group_name = group;
  return functional::noise_rng(rng.clone(), ranks);
}

std::string LFQImpl::group() const {
  if (!is_training() || !options.sync_codebook().value_or(true)) return "";
  return options.process_group().value_or(distributed::default_group());
}

std::string LFQImpl::label() const {
  return "LFQ(dim=" + std::to_string(dim()) + ", codebook_size=" + std::to_string(codebook_size()) +
         ")";
}

void LFQImpl::shake_hands(const std::string& group) const {
  if (group.empty()) return;
  distributed::HandshakeOptions call;
  call.group_name = group;
  call.label = label();
  call.handle = handle_;
  call.signature = label() + ", " + std::to_string(options.num_codebooks()) + " codebooks, scale " +
                   std::to_string(options.codebook_scale()) + ", spherical " +
                   std::to_string(options.spherical()) + ", fraction " +
                   std::to_string(options.frac_per_sample_entropy());
  std::vector<torch::Tensor> state;
  for (const auto& tensor : {rng, orthogonal_rot}) {
    if (tensor.defined()) state.push_back(tensor);
  }
  distributed::handshake_(state, call);
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor LFQImpl::codebook() const {
  const auto every = at::arange(codebook_size(), bit_values.options());
  return ops::sign_decode(every, bits_, code_value());
}

torch::Tensor LFQImpl::bits_to_codes(const torch::Tensor& bits) const {
  return ops::sign_quantize(bits.to(at::kFloat), code_value()).first;
}

torch::Tensor LFQImpl::indices_to_codes(const torch::Tensor& indices, bool with_projection) {
  const auto stacked = keeps_num_codebooks_dim() ? indices : indices.unsqueeze(-1);
  TORCH_CHECK_VALUE(stacked.dim() >= 1 && stacked.size(-1) == options.num_codebooks(),
                    "LFQ: expected indices to have ", options.num_codebooks(),
                    " codebooks on the last axis, but got shape ", indices.sizes());
  const bool wide = project_out && project_out->weight.scalar_type() == at::kDouble;
  auto output = ops::sign_decode(stacked, bits_, code_value(), wide ? at::kDouble : at::kFloat);
  if (orthogonal_rot.defined()) output = F::rotate_features(output, orthogonal_rot, true);
  output = output.flatten(-2);
  if (with_projection && project_out) {
    // Masked tokens have no output; the bias of the projection would give them one.
    output = detail::apply_linear(project_out, output)
                 .masked_fill(stacked.lt(0).all(-1, /*keepdim=*/true), 0);
  }
  const bool maps = options.channel_first().value_or(stacked.dim() >= 4);
  return maps && output.dim() > 2 ? output.movedim(-1, 1) : output;
}

}  // namespace torchvq
