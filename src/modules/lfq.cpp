#include <torchvq/modules/lfq.h>

#include <cmath>
#include <ios>
#include <ostream>
#include <sstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/lookup_free.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/sign_quantize.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/random_state.h"
#include "modules/ranks.h"
#include "modules/set_apart.h"
#include "options/text.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

detail::Layout layout_of(const LFQImpl& lfq, int64_t axes) {
  return {.dim = lfq.dim(),
          .heads = lfq.options.num_codebooks(),
          .separate = true,
          .channel_first = lfq.options.channel_first().value_or(axes >= 4),
          .owner = "LFQ"};
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

LFQImpl::LFQImpl(LFQOptions options_, bool is_level, bool owns_activation)
    : options(std::move(options_)),
      built_from_(options),
      is_level_(is_level),
      owns_activation_(owns_activation),
      handle_(distributed::new_handle()) {
  reset();
  if (!is_level_ && is_unbounded()) {
    TORCH_WARN(
        "LFQ: commitment_loss_weight is 0, so nothing keeps latents from growing without bound; "
        "start with spherical, commitment_loss_weight 0.1 and entropy_loss_weight 0.005, or set "
        "one of the first two or soft_clamp_input_value");
  }
}

bool LFQImpl::is_unbounded() const {
  // Without projections cosine_sim_project_in has no effect.
  const bool cosine = options.cosine_sim_project_in() && has_projections();
  const bool bounded =
      options.spherical() || cosine || options.soft_clamp_input_value().has_value();
  return options.commitment_loss_weight() == 0 && options.entropy_loss_weight() > 0 && !bounded;
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
  if (!activation.is_empty() && owns_activation_) register_module("activation", activation.ptr());
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
  auto own = built_from_;
  own.straight_through_activation(own.straight_through_activation().clone(device));
  auto copy = std::make_shared<LFQImpl>(std::move(own), is_level_, owns_activation_);
  detail::copy_tensors(*this, *copy, device);
  copy->copy_options(*this, device);
  return copy;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> LFQImpl::borrowed_modules()
    const {
  const auto& activation = built_from_.straight_through_activation();
  if (owns_activation_ || activation.is_empty()) return {};
  return {{"activation", activation.ptr()}};
}

void LFQImpl::copy_options(const LFQImpl& other, const std::optional<torch::Device>& device) {
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.straight_through_activation(); });
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
  layout.check_input(x);
  const auto token_mask = layout.mask_of_items(x, mask);
  const bool drawing = is_training() && options.frac_per_sample_entropy() < 1;
  TORCH_CHECK_VALUE(!drawing || rng.defined(),
                    "LFQ: expected frac_per_sample_entropy to be given to the constructor, which "
                    "makes the generator of the draws, but got set on the module");
  const auto ranks = group();
  // The reference quantizes padding as well.
  const auto filled = options.vqp_compat() ? std::nullopt : token_mask;
  const bool projects = static_cast<bool>(project_out);
  const auto tokens = projects ? projected(layout.pack(x, filled)) : x;
  // Before anything is drawn, so that ranks have the same seed.
  if (!ranks.empty()) handshake(ranks, tokens);
  auto found = F::lookup_free_quantize(tokens, step_arguments(token_mask, draw_for()),
                                       step_options()
                                           .channel_first(layout.channel_first && !projects)
                                           .inv_temperature(inv_temperature)
                                           .estimates(is_training())
                                           .scores(is_training())
                                           .ranks({ranks, label()}));
  if (is_training() && rng.defined()) ops::advance_rng_(rng);
  if (projects) {
    found.quantized = detail::restore_output(found.quantized, x, filled, layout, project_out);
    found.indices = layout.unpack_positions(found.indices, x);
  }
  if (keeps_codebook_axis() && options.num_codebooks() == 1) {
    found.indices = found.indices.unsqueeze(-1);
  }
  auto& [loss, per_sample, batch, commitment] = found.losses;
  detail::set_apart({&loss, &per_sample, &batch, &commitment});
  return {found.quantized, found.indices, loss, {per_sample, batch, commitment}};
}

torch::Tensor LFQImpl::projected(const torch::Tensor& tokens) {
  return detail::widened(cosine_in ? cosine_in(tokens.to(cosine_in->weight.scalar_type()))
                                   : detail::apply_linear(linear_in, tokens));
}

F::LookupFreeOptions LFQImpl::step_options() const {
  F::LookupFreeWeights weights;
  weights.entropy = options.entropy_loss_weight();
  weights.diversity_gamma = options.diversity_gamma();
  weights.commitment = options.commitment_loss_weight();
  if (options.experimental_softplus_entropy_loss()) {
    weights.softplus_offset = options.entropy_loss_offset();
  }
  return F::LookupFreeOptions()
      .codebooks(options.num_codebooks())
      .scale(code_value())
      .radius(options.spherical() ? std::optional(options.codebook_scale()) : std::nullopt)
      .soft_clamp(options.soft_clamp_input_value())
      .fraction(options.frac_per_sample_entropy())
      .weights(weights)
      .vqp_compat(options.vqp_compat());
}

F::LookupFreeArguments LFQImpl::step_arguments(const OptionalTensor& mask,
                                               const torch::Tensor& draw) {
  F::LookupFreeArguments arguments{.mask = mask, .rotation = {}, .rng = {}, .activation = {}};
  if (orthogonal_rot.defined()) arguments.rotation = orthogonal_rot;
  if (draw.defined()) arguments.rng = draw;
  auto& activation = options.straight_through_activation();
  if (!activation.is_empty()) {
    arguments.activation = [&activation](const at::Tensor& latents) {
      return activation.forward<torch::Tensor>(latents);
    };
  }
  return arguments;
}

// Ranks -------------------------------------------------------------------------------------------

torch::Tensor LFQImpl::draw_for() const {
  if (!is_training() || !rng.defined()) return {};
  return rng.clone();
}

std::string LFQImpl::group() const {
  if (!is_training() || options.vqp_compat() || !options.sync_codebook().value_or(true)) return "";
  return options.process_group().value_or(distributed::default_group());
}

std::string LFQImpl::label() const {
  return "LFQ(dim=" + std::to_string(dim()) + ", codebook_size=" + std::to_string(codebook_size()) +
         ")";
}

std::string LFQImpl::signature() const {
  std::ostringstream text;
  text << std::boolalpha << label() << ", " << options.num_codebooks() << " codebooks, scale "
       << detail::option_text(options.codebook_scale()) << ", spherical " << options.spherical()
       << ", fraction " << detail::option_text(options.frac_per_sample_entropy()) << ", vqp_compat "
       << options.vqp_compat();
  return text.str();
}

void LFQImpl::handshake(const std::string& group, const torch::Tensor& tokens) const {
  distributed::HandshakeOptions call;
  call.group_name = group;
  call.label = label();
  call.handle = handle_;
  call.signature = detail::tokens_text(tokens.scalar_type()) + "; " + signature();
  std::vector<torch::Tensor> state{detail::on_device_of(tokens)};
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
  detail::check_defined("LFQ", "bits", bits);
  TORCH_CHECK_TYPE(!bits.is_complex(), "LFQ: expected bits to be bool or numbers, but got ",
                   bits.scalar_type());
  TORCH_CHECK_VALUE(bits.dim() > 0 && bits.size(-1) == bits_, "LFQ: expected bits to be of ", bits_,
                    " on the last axis, but got shape ", bits.sizes());
  // float32 has no numbers as small as float64.
  const bool wide = bits.scalar_type() == at::kDouble;
  const auto set = (wide ? bits : bits.to(at::kFloat)).gt(0);
  return ops::sign_quantize(set.to(at::kFloat), code_value()).first;
}

torch::Tensor LFQImpl::indices_to_codes(const torch::Tensor& indices, bool with_projection) {
  const auto whole = detail::as_int64("LFQ", indices);
  const auto stacked = keeps_codebook_axis() ? whole : whole.unsqueeze(-1);
  TORCH_CHECK_VALUE(stacked.dim() >= 1 && stacked.size(-1) == options.num_codebooks(),
                    "LFQ: expected indices to have ", options.num_codebooks(),
                    " codebooks on the last axis, but got shape ", indices.sizes());
  const auto dtype = detail::decoding_dtype(project_out, orthogonal_rot);
  auto output = ops::sign_decode(stacked, bits_, code_value(), dtype);
  if (orthogonal_rot.defined()) output = F::rotate_features(output, orthogonal_rot, true);
  output = output.flatten(-2);
  output = with_projection ? detail::project_decoded(project_out, output, stacked, *this)
                           : in_half_dtype(output);
  return layout_of(*this, output.dim()).place_features(output);
}

}  // namespace torchvq
