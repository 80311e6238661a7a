#include <torchvq/modules/vector_quantize.h>

#include <algorithm>
#include <ostream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <torch/nn/modules/container/sequential.h>

#include <torchvq/functional/decode.h>
#include <torchvq/functional/layout.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "modules/call_checks.h"
#include "modules/copy_tensors.h"
#include "modules/decoding.h"
#include "modules/in_place.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/losses.h"
#include "modules/messages.h"
#include "modules/projection.h"
#include "modules/ranks.h"
#include "modules/set_apart.h"
#include "modules/stats.h"
#include "modules/step.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

constexpr auto kVectorQuantize = "VectorQuantize";

detail::Request request_of(const VectorQuantizeImpl& vq, const torch::Tensor& x,
                           const VectorQuantizeForwardOptions& call) {
  const auto& options = vq.options;
  const auto topk = call.topk();
  const bool updates = call.ema_update().value_or(vq.resolved().ema_update);
  return {
      .targets = call.indices(),
      .mask = detail::layout_of(options, kVectorQuantize).token_mask(x, call.mask(), call.lens()),
      .topk = topk ? std::optional(std::min(*topk, options.codebook_size())) : std::nullopt,
      .temperature = call.sample_codebook_temp().value_or(options.sample_codebook_temp()),
      .frozen = call.freeze_codebook().value_or(options.freeze_codebook()),
      .transform = call.codebook_transform_fn(),
      .ema_update = updates,
      .accumulate = call.accum_ema_update() && vq.codebook_state->learns(updates),
      .weight = call.ema_update_weight(),
      .ranks = detail::ranks_of(vq, kVectorQuantize, options.dim()),
  };
}

/// Tokens of each head in the space in which they are compared with codes.
torch::Tensor metric_space(const CodebookImpl& codebook, const torch::Tensor& inputs) {
  return codebook.options.use_cosine_sim() ? ops::unit_vectors(inputs) : inputs;
}

/// Whether learning outside of forward replaces codes, and so counts them and draws; not in
/// evaluation.
bool replaces_codes(const CodebookImpl& codebook) {
  return codebook.is_training() && codebook.has_dead_code_replacement();
}

VectorQuantizeOutput result_of(const torch::Tensor& quantized, const torch::Tensor& indices,
                               torch::Tensor loss, LossBreakdown terms) {
  auto& [commitment, diversity, orthogonal, in_place] = terms;
  detail::set_apart({&loss, &commitment, &diversity, &orthogonal, &in_place});
  return {quantized, indices, loss, terms};
}

}  // namespace

VectorQuantizeImpl::VectorQuantizeImpl(VectorQuantizeOptions options_)
    : VectorQuantizeImpl(std::move(options_), nullptr) {}

VectorQuantizeImpl::VectorQuantizeImpl(VectorQuantizeOptions options_, Codebook borrowed,
                                       bool owns_bridge)
    : options(std::move(options_)),
      built_from_(options),
      borrowed_(std::move(borrowed)),
      owns_bridge_(owns_bridge) {
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
  codebook_state =
      borrowed_ ? borrowed_ : register_module("_codebook", Codebook(options, owns_bridge_));
  if (options.in_place_codebook_optimizer()) {
    set_in_place_optimizer(kVectorQuantize, options.in_place_codebook_optimizer()(
                                                codebook_state->learned_parameters()));
  }
}

ResolvedVectorQuantizeOptions VectorQuantizeImpl::resolved() const {
  auto resolved = resolved_;
  resolved.rotation_trick = options.rotation_trick().value_or(resolved.rotation_trick);
  resolved.ema_update = options.ema_update().value_or(resolved.ema_update);
  return resolved;
}

void VectorQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::VectorQuantize(dim=" << options.dim()
         << ", codebook_size=" << options.codebook_size() << ", heads=" << options.heads()
         << ", metric=" << codebook_state->metric() << ")";
}

std::shared_ptr<torch::nn::Module> VectorQuantizeImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  own.vq_bridge(own.vq_bridge().clone(device));
  // A borrowed codebook is replaced by the copy's own; a level with a borrowed codebook has
  // no other tensors to copy.
  auto copy = std::make_shared<VectorQuantizeImpl>(std::move(own), nullptr, owns_bridge_);
  if (borrowed_) {
    copy->train(is_training());
  } else {
    detail::copy_tensors(*this, *copy, device);
  }
  copy->copy_level(*this, device);
  return copy;
}

void VectorQuantizeImpl::copy_level(const VectorQuantizeImpl& other,
                                    const std::optional<torch::Device>& device) {
  codebook_state->copy_state(*other.codebook_state, device);
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.vq_bridge(); });
  step_counts = other.step_counts;
  copy_in_place_optimizer(other);
}

void VectorQuantizeImpl::save(torch::serialize::OutputArchive& archive) const {
  torch::nn::Module::save(archive);
  save_in_place_optimizer(archive);
}

void VectorQuantizeImpl::load(torch::serialize::InputArchive& archive) {
  const auto state = read_in_place_optimizer(archive);
  CheckedLoad<VectorQuantizeImpl>::load(archive);
  load_in_place_optimizer_state(state);
  step_counts.reset();
}

bool VectorQuantizeImpl::has_commitment_loss() const {
  return options.commitment_weight() > 0 && !options.directional_reparam();
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
VectorQuantizeImpl::borrowed_modules() const {
  if (!borrowed_) {
    return {};
  }
  return {{"_codebook", borrowed_.ptr()}};
}

// Forward -----------------------------------------------------------------------------------------

VectorQuantizeOutput VectorQuantizeImpl::forward(const torch::Tensor& x,
                                                 const VectorQuantizeForwardOptions& call) {
  const auto layout = detail::layout_of(options, kVectorQuantize);
  layout.check_input(x);
  check_topk(call.topk());
  const auto request = request_of(*this, x, call);
  check_arguments(x, call);
  if (!project_in) {
    detail::agree(*this, request, x.scalar_type());
    auto found = detail::step(*this, x, std::nullopt, request, detail::token_layout(options));
    return result_of(found.quantized, found.indices, found.loss, found.breakdown);
  }
  const auto packed = layout.pack(x);
  const bool fills = request.mask && !detail::sees_padding(options, is_training());
  const auto tokens = fills ? F::fill_masked(packed, *request.mask) : packed;
  // Codes are passed to project_out unrounded.
  const auto projected = project(tokens);
  detail::agree(*this, request, projected.scalar_type());
  const auto inner = detail::token_layout(options).channel_first(false).zeros_for_masked(true);
  auto [quantized, indices, loss, terms] =
      detail::step(*this, projected.to(detail::compute_dtype(projected)), tokens, request, inner);
  if (loss.dim() > 0) {  // candidates have one loss each
    loss = layout.unpack_positions(loss, x);
    terms.commitment = layout.unpack_positions(terms.commitment, x);
  }
  return result_of(restore(quantized, packed, x, request.mask), layout.unpack_positions(indices, x),
                   loss, terms);
}

// Stages of forward -------------------------------------------------------------------------------

void VectorQuantizeImpl::check_topk(std::optional<int64_t> topk) const {
  if (!topk) return;
  const auto expect = [&](bool holds, const char* condition) {
    TORCH_CHECK_VALUE(holds, "VectorQuantize: expected topk to be ", condition, ", but got ",
                      *topk);
  };
  expect(!is_training() || !options.commitment_use_cross_entropy_loss(),
         "none in training with commitment_use_cross_entropy_loss");
  expect(!is_training() || !in_place_optimizer_,
         "none in training with in_place_codebook_optimizer");
  expect(*topk >= 1, "at least 1");
  expect(options.heads() == 1, "none with several heads");
}

void VectorQuantizeImpl::check_arguments(const torch::Tensor& x,
                                         const VectorQuantizeForwardOptions& call) const {
  const bool early = !codebook_state->initialised() || options.affine_param();
  if (is_training() && early) detail::check_options_set_later(*this);
  detail::check_affine_param(*this);
  detail::check_temperature(options, call.sample_codebook_temp(), kVectorQuantize);
  if (const auto& targets = call.indices()) {
    detail::check_targets(*targets, x, detail::layout_of(options, kVectorQuantize),
                          options.codebook_size());
  }
  if (const auto& weight = call.ema_update_weight(); weight && is_training()) {
    detail::check_ema_weight(*weight, codebook_state->cluster_size);
  }
}

torch::Tensor VectorQuantizeImpl::project(const torch::Tensor& tokens) {
  auto projected = detail::apply_linear(project_in, tokens);
  if (project_in_norm) {
    // Autocast may have changed the dtype of the projection, and the norm
    // accepts only its own dtype.
    projected = project_in_norm(projected.to(project_in_norm->weight.scalar_type()));
  }
  return projected;
}

torch::Tensor VectorQuantizeImpl::restore(const torch::Tensor& codes, const torch::Tensor& packed,
                                          const torch::Tensor& x, const OptionalTensor& mask) {
  const auto padding =
      options.return_zeros_for_masked_padding() ? std::nullopt : OptionalTensor(packed);
  return detail::restore_output(codes, x, mask, detail::layout_of(options, kVectorQuantize),
                                project_out, padding);
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor VectorQuantizeImpl::codebook() {
  const auto codes = codebook_state->codes();
  return options.separate_codebook_per_head() ? codes : codes.squeeze(0);
}

void VectorQuantizeImpl::set_codebook(const torch::Tensor& codes) {
  detail::check_defined(kVectorQuantize, "codebook", codes);
  const auto shape = codebook_state->embed_avg.sizes();
  TORCH_CHECK_VALUE(codes.sizes() == shape || codes.sizes() == shape.slice(1),
                    "VectorQuantize: expected codebook to have shape ", shape, ", but got ",
                    codes.sizes());
  TORCH_CHECK_TYPE(!codes.is_complex() && codes.scalar_type() != at::kBool,
                   "VectorQuantize: expected codebook to be a tensor of real numbers, but got ",
                   codes.scalar_type());
  const auto dtype = codebook_state->embed.scalar_type();
  TORCH_CHECK_VALUE(codes.is_meta() || at::isfinite(codes.to(dtype)).all().item<bool>(),
                    "VectorQuantize: expected codebook to be finite in ", dtype,
                    ", but got NaN or infinity");
  codebook_state->set_codes(codes);
}

torch::Tensor VectorQuantizeImpl::decode(const torch::Tensor& indices) {
  const auto [codes, affine] = detail::decoding_codes(*codebook_state);
  return functional::decode_indices(codes, indices, options.heads(),
                                    options.separate_codebook_per_head(), affine);
}

torch::Tensor VectorQuantizeImpl::get_codes_from_indices(const torch::Tensor& indices) {
  return detail::layout_of(options, kVectorQuantize)
      .place_features(
          codebook_state->in_half_dtype(decode(detail::as_int64(kVectorQuantize, indices))));
}

torch::Tensor VectorQuantizeImpl::get_output_from_indices(const torch::Tensor& indices) {
  const auto whole = detail::as_int64(kVectorQuantize, indices);
  return detail::layout_of(options, kVectorQuantize)
      .place_features(detail::project_decoded(project_out, decode(whole), whole, *codebook_state));
}

CodebookStats VectorQuantizeImpl::stats(bool synced) const {
  return detail::read_stats({this}, synced)[0];
}

// Learning outside of forward ---------------------------------------------------------------------

void VectorQuantizeImpl::update_ema_indices(const torch::Tensor& x, const torch::Tensor& indices,
                                            const OptionalTensor& mask) {
  if (!resolved().ema_update) {
    return;
  }
  at::NoGradGuard no_grad;
  const auto layout = detail::layout_of(options, kVectorQuantize);
  layout.check_input(x);
  const auto targets = detail::unflattened(indices, x, layout);
  detail::check_targets(targets, x, layout, codebook_state->embed.size(1));
  const auto head_mask = layout.split_mask(layout.token_mask(x, mask, std::nullopt));
  const auto inputs = metric_space(*codebook_state, layout.split_heads(project(layout.pack(x))));
  const auto ranks = detail::sharing_ranks_of(*this, kVectorQuantize, options.dim());
  const bool replaces = replaces_codes(*codebook_state);
  // Candidates for dead codes come with the statistics, but not in evaluation.
  const bool alone = codebook_state->has_dead_code_replacement() && !replaces;
  detail::agree_to_learn(*this, ranks, inputs.scalar_type(),
                         alone ? "statistics alone" : "statistics");
  if (replaces) codebook_state->reset_replaced();
  codebook_state->learn(inputs, layout.split_indices(targets), head_mask, /*ema_update=*/true,
                        /*accumulate=*/false, std::nullopt, ranks);
  if (replaces) ops::advance_rng_(codebook_state->rng);
}

void VectorQuantizeImpl::expire_codes_(const torch::Tensor& x) {
  if (!replaces_codes(*codebook_state)) return;
  at::NoGradGuard no_grad;
  // Before ranks exchange anything, and before the codes that were replaced count anew.
  detail::check_input_floating("VectorQuantize", "x", x);
  const auto width = options.heads() * codebook_state->embed.size(2);
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == width,
                    "VectorQuantize: expected x to be of shape (B, N, ", width, "), but got shape ",
                    x.sizes());
  const auto inputs =
      metric_space(*codebook_state, detail::layout_of(options, kVectorQuantize).split_heads(x));
  const auto ranks = detail::sharing_ranks_of(*this, kVectorQuantize, options.dim());
  detail::agree_to_learn(*this, ranks, inputs.scalar_type(), "candidates");
  codebook_state->reset_replaced();
  codebook_state->expire_codes(inputs, ranks);
  ops::advance_rng_(codebook_state->rng);
}

}  // namespace torchvq
