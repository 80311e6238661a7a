#include <torchvq/modules/residual_vq.h>

#include <ostream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/functional/decode.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/precision.h"
#include "modules/copy_tensors.h"
#include "modules/decoding.h"
#include "modules/indices.h"
#include "modules/projection.h"
#include "modules/residual_engine.h"
#include "modules/residual_levels.h"
#include "modules/stats.h"

namespace torchvq {
namespace {

constexpr double kVqpVariance = 0.005;

/// The options of a level: those given for all levels, with those that the stack sets.
VectorQuantizeOptions level_options(const ResidualVQOptions& options, int64_t size, int64_t inner,
                                    bool several) {
  auto own = options.vq();
  own.dim(inner)
      .codebook_size(size)
      .codebook_dim(options.codebook_dim().value_or(options.dim()))
      .heads(options.heads())
      .accept_image_fmap(options.accept_image_fmap())
      .return_zeros_for_masked_padding(options.return_zeros_for_masked_padding());
  // One copied gradient for the whole stack learns better than rotated ones
  // (docs/design/residual.md).
  const bool one = several && !own.vqp_compat() && !own.use_cosine_sim();
  if (one && !own.rotation_trick()) own.rotation_trick(false);
  if (options.implicit_neural_codebook() || options.diveq()) {
    own.learnable_codebook(true).ema_update(false);
  }
  if (options.diveq()) {
    own.commitment_weight(0);
  }
  if (options.shared_codebook()) {
    own.in_place_codebook_optimizer(nullptr);  // belongs to the stack
  }
  if (own.vqp_compat()) {
    // The values that the reference uses for these options in stacks.
    own.freeze_codebook(false);
    if (options.diveq()) own.directional_reparam_variance(kVqpVariance);
    if (options.shared_codebook()) {
      own.manual_ema_update(false).manual_in_place_optimizer_update(true);
    }
  }
  return own;
}

}  // namespace

ResidualVQImpl::ResidualVQImpl(ResidualVQOptions options_, bool owns_bridge)
    : options(std::move(options_)), built_from_(options), owns_bridge_(owns_bridge) {
  reset();
}

void ResidualVQImpl::reset() {
  const auto sizes = options.validate();
  const int64_t code = options.codebook_dim().value_or(options.dim());
  const int64_t inner = code * options.heads();
  if (inner != options.dim()) {
    project_in = register_module("project_in", torch::nn::Linear(options.dim(), inner));
    project_out = register_module("project_out", torch::nn::Linear(inner, options.dim()));
  }
  make_levels(sizes, inner);
  mlps.clear();
  if (options.implicit_neural_codebook()) {
    auto list = register_module("mlps", torch::nn::ModuleList());
    for (size_t index = 1; index < sizes.size(); ++index) {
      mlps.emplace_back(code, options.mlp_kwargs());
      list->push_back(mlps.back());
    }
  }
  if (options.shared_codebook() && options.vq().in_place_codebook_optimizer()) {
    set_in_place_optimizer("ResidualVQ", options.vq().in_place_codebook_optimizer()(
                                             levels[0]->codebook_state->learned_parameters()));
  }
}

void ResidualVQImpl::make_levels(const std::vector<int64_t>& sizes, int64_t inner) {
  levels.clear();
  auto list = register_module("layers", torch::nn::ModuleList());
  for (const auto size : sizes) {
    // Registered once, so that an optimizer updates a shared parameter once.
    const auto shared =
        options.shared_codebook() && !levels.empty() ? levels[0]->codebook_state : nullptr;
    levels.emplace_back(level_options(options, size, inner, sizes.size() > 1), shared,
                        owns_bridge_ && levels.empty());
    list->push_back(levels.back());
  }
}

void ResidualVQImpl::check_diveq() const {
  // Otherwise, the losses would be those of the one setting and the gradient that of the other.
  TORCH_CHECK_VALUE(!is_training() || options.diveq() == built_from_.diveq(),
                    "ResidualVQ: expected diveq to be given to the constructor, which sets the "
                    "options of the levels, but got set on the module");
}

void ResidualVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::ResidualVQ(dim=" << options.dim() << ", num_quantizers=" << num_quantizers()
         << ", codebook_size=" << at::IntArrayRef(options.validate())
         << ", heads=" << options.heads() << ", metric=" << levels[0]->codebook_state->metric()
         << ")";
}

// Copies and checkpoints --------------------------------------------------------------------------

std::shared_ptr<torch::nn::Module> ResidualVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  own.vq().vq_bridge(own.vq().vq_bridge().clone(device));
  auto copy = std::make_shared<ResidualVQImpl>(std::move(own), owns_bridge_);
  copy->copy_state(*this, device);
  return copy;
}

void ResidualVQImpl::copy_state(const ResidualVQImpl& other,
                                const std::optional<torch::Device>& device) {
  detail::check_number_of("levels", other.levels.size(), levels.size());
  detail::copy_tensors(other, *this, device);
  for (size_t index = 0; index < levels.size(); ++index) {
    levels[index]->copy_level(*other.levels[index], device);
  }
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.vq().vq_bridge(); });
  copy_in_place_optimizer(other);
}

void ResidualVQImpl::save(torch::serialize::OutputArchive& archive) const {
  torch::nn::Module::save(archive);
  save_in_place_optimizer(archive);
}

void ResidualVQImpl::load(torch::serialize::InputArchive& archive) {
  const auto state = read_in_place_optimizer(archive);
  CheckedLoad<ResidualVQImpl>::load(archive);
  load_in_place_optimizer_state(state);
}

void ResidualVQImpl::update_in_place_optimizer() {
  for (auto& level : levels) {
    level->update_in_place_optimizer();
  }
  InPlaceOptimizer::update_in_place_optimizer();
}

std::vector<CodebookStats> ResidualVQImpl::stats(bool synced) const {
  std::vector<const VectorQuantizeImpl*> all;
  for (const auto& level : levels) {
    all.push_back(level.get());
  }
  return detail::read_stats(all, synced);
}

// Codes -------------------------------------------------------------------------------------------

std::vector<torch::Tensor> ResidualVQImpl::codebooks() {
  std::vector<torch::Tensor> codes;
  for (auto& level : levels) {
    const auto own = level->codebook_state->codes();
    codes.push_back(own.size(0) == 1 ? own.squeeze(0) : own);
  }
  return codes;
}

int64_t ResidualVQImpl::decoded_levels(const torch::Tensor& indices) const {
  return detail::decoded_levels("ResidualVQ", indices, num_quantizers(),
                                options.quantize_dropout());
}

std::vector<torch::Tensor> ResidualVQImpl::decode_levels(const torch::Tensor& indices) {
  const auto count = decoded_levels(indices);
  const auto layout = detail::layout_of(*this);
  std::vector<torch::Tensor> decoded;
  torch::Tensor total;  // of implicit codes, at least in float32 as in the forward
  for (int64_t number = 0; number < count; ++number) {
    const auto own = indices.select(-1, number);
    const auto rows = layout.split_indices(own);
    auto codes = ops::lookup_codes(levels[number]->codebook_state->codes(), rows);
    if (total.defined()) {
      const auto made = mlps.at(number - 1)->rows(codes, total);
      codes = made.masked_fill(rows.lt(0).unsqueeze(-1), 0);
    }
    if (options.implicit_neural_codebook()) {
      total = total.defined() ? total.add(codes) : detail::widened(codes);
    }
    decoded.push_back(layout.join_heads(codes, own.sizes()));
  }
  return decoded;
}

torch::Tensor ResidualVQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  const auto whole = detail::as_int64("ResidualVQ", indices);
  return levels[0]->codebook_state->in_half_dtype(
      detail::stack_levels(decode_levels(whole), num_quantizers(), 0));
}

torch::Tensor ResidualVQImpl::decode_sum(const torch::Tensor& indices) {
  if (options.implicit_neural_codebook()) {
    const auto codes = decode_levels(indices);
    auto total = detail::widened(codes[0]);
    for (size_t number = 1; number < codes.size(); ++number) {
      total = total.add(codes[number]);
    }
    return total;
  }
  std::vector<torch::Tensor> codebooks, affine;
  const auto count = decoded_levels(indices);
  for (int64_t number = 0; number < count; ++number) {
    const auto [codes, map] = detail::decoding_codes(*levels[number]->codebook_state);
    codebooks.push_back(codes);
    affine.insert(affine.end(), map.begin(), map.end());
  }
  const auto layout = detail::layout_of(*this);
  return functional::decode_residual(indices, codebooks, layout.heads, layout.separate, affine);
}

torch::Tensor ResidualVQImpl::get_output_from_indices(const torch::Tensor& indices) {
  const auto whole = detail::as_int64("ResidualVQ", indices);
  const auto& half = *levels[0]->codebook_state;
  return detail::layout_of(*this).place_features(
      detail::project_decoded(project_out, decode_sum(whole), whole, half));
}

}  // namespace torchvq
