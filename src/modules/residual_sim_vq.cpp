#include <torchvq/modules/residual_sim_vq.h>

#include <ostream>
#include <utility>

#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/estimate.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/residual_beam_search.h>

#include "detail/joined.h"
#include "modules/copy_tensors.h"
#include "modules/random_state.h"
#include "modules/residual_engine.h"
#include "modules/residual_stack.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// (B, N, D) as (1, B * N, D), as operators expect.
torch::Tensor rows_of(const torch::Tensor& tokens) { return tokens.flatten(0, 1).unsqueeze(0); }

OptionalTensor rows_of(const OptionalTensor& mask) {
  return mask ? OptionalTensor(mask->reshape({1, -1})) : std::nullopt;
}

/// Codes (Q, B, *, dim) with features on the axis of the layout; (B, dim) has
/// no position axis to move.
torch::Tensor placed(const torch::Tensor& codes, bool channel_first) {
  return channel_first && codes.dim() > 3 ? codes.movedim(-1, 2) : codes;
}

SimVQOptions level_options(const ResidualSimVQOptions& options) {
  auto own = options.sim_vq();
  own.dim(options.dim() / options.heads())
      .codebook_size(options.codebook_size())
      .rotation_trick(options.rotation_trick())
      .channel_first(false);
  return own;
}

/// The estimator of a level by the options of the stack, which may have been set after construction.
/// The level's own copies still have the old values; with some of each, the gradient would be that of
/// neither setting.
std::string estimator_of(const ResidualSimVQImpl& stack, const SimVQImpl& level) {
  return level.estimator(stack.options.rotation_trick(), stack.options.sim_vq().vqp_compat());
}

}  // namespace

ResidualSimVQImpl::ResidualSimVQImpl(ResidualSimVQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void ResidualSimVQImpl::reset() {
  options.validate();
  levels.clear();
  auto list = register_module("layers", torch::nn::ModuleList());
  const bool shared = !options.sim_vq().codebook_transform().is_empty();
  for (int64_t level = 0; level < options.num_quantizers(); ++level) {
    // Registered once, so that an optimizer updates a shared parameter once.
    levels.emplace_back(level_options(options), /*owns_transform=*/level == 0 || !shared);
    list->push_back(levels.back());
  }
  if (drops()) rng = register_buffer("rng", detail::fresh_rng());
}

void ResidualSimVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::ResidualSimVQ(dim=" << options.dim()
         << ", codebook_size=" << options.codebook_size()
         << ", num_quantizers=" << options.num_quantizers() << ", heads=" << options.heads() << ")";
}

std::shared_ptr<torch::nn::Module> ResidualSimVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  own.sim_vq().init_fn({});
  auto& transform = own.sim_vq().codebook_transform();
  transform = transform.clone(device);
  auto copy = std::make_shared<ResidualSimVQImpl>(std::move(own));
  detail::check_number_of("levels", levels.size(), copy->levels.size());
  detail::copy_tensors(*this, *copy, device);
  for (size_t level = 0; level < levels.size(); ++level) {
    copy->levels[level]->copy_options(*levels[level], device);
  }
  detail::copy_options(options, built_from_, copy->options, device,
                       [](auto& all) -> auto& { return all.sim_vq().codebook_transform(); });
  return copy;
}

// Forward -----------------------------------------------------------------------------------------

detail::Layout ResidualSimVQImpl::layout() const {
  return {.dim = options.dim(),
          .heads = options.heads(),
          .channel_first = options.channel_first(),
          .owner = "ResidualSimVQ"};
}

struct ResidualSimVQImpl::Stack final : detail::ResidualStack {
  explicit Stack(ResidualSimVQImpl& own) : own_(own), training_(own.is_training()) {
    using detail::StackGain;
    layout = own.layout();
    levels = own.options.num_quantizers();
    vqp_compat = own.options.sim_vq().vqp_compat();
    module = &own;
    const auto estimated =
        own.options.rotation_trick() ? StackGain::kAveraged : StackGain::kEstimated;
    gain = training_ && !vqp_compat ? estimated : StackGain::kSummed;
  }

  at::Tensor prepare_inputs(const at::Tensor& inputs, const OptionalTensor& mask) override {
    row_mask = rows_of(mask);
    const auto beam = own_.options.eval_beam_size().value_or(1);
    if (training_ || beam == 1) return inputs;
    std::vector<at::Tensor> codebooks;
    for (auto& level : own_.levels) {
      codebooks.push_back(level->codes_for(inputs.scalar_type()).detach());
    }
    const auto paths = ops::residual_beam_search(rows_of(inputs.detach()), codebooks, beam,
                                                 ops::ResidualBeamSearchOptions().mask(row_mask));
    // For padding any valid code will do.
    chosen_ = paths.clamp_min(0).view({inputs.size(0), inputs.size(1), levels});
    return inputs;
  }

  detail::LevelsResult process_levels(const at::Tensor& inputs, const OptionalTensor& mask,
                                      int64_t depth, bool /*all_codes*/) override {
    if (auto found = process_at_once(inputs, mask, depth)) return std::move(*found);
    return process_in_turn(inputs, depth, [this](int64_t index, const at::Tensor& residual) {
      return quantize_level(index, residual);
    });
  }

  at::Tensor estimate(const at::Tensor& inputs, const at::Tensor& total) override {
    const auto draws = at::zeros({2}, inputs.options().dtype(at::kLong).requires_grad(false));
    return F::estimate(rows_of(inputs), rows_of(total), draws,
                       F::EstimateOptions().estimator(estimator_of(own_, *own_.levels[0])))
        .view_as(inputs);
  }

  at::Tensor decode_level(int64_t index, const at::Tensor& indices) override {
    return own_.levels[static_cast<size_t>(index)]->decode_tokens(indices);
  }

  // Of the forward.
  OptionalTensor row_mask;                 ///< (1, B * N)
  std::vector<F::QuantizeOutput> results;  ///< of levels that were processed in turn
  torch::Tensor losses;                    ///< (depth,), of levels that were processed at once

 private:
  /// Whether each level has a gradient of its own.
  bool estimates_levels() const { return vqp_compat || gain == detail::StackGain::kAveraged; }

  std::optional<detail::LevelsResult> process_at_once(const at::Tensor& inputs,
                                                      const OptionalTensor& mask, int64_t depth) {
    if (!training_) return std::nullopt;
    const auto estimator = estimator_of(own_, *own_.levels[0]);
    std::vector<F::LinearLevel> linear;
    for (size_t index = 0; index < static_cast<size_t>(depth); ++index) {
      const auto& level = *own_.levels.at(index);
      auto map = level.linear_level(inputs);
      if (!map || estimator_of(own_, level) != estimator) return std::nullopt;
      linear.push_back(std::move(*map));
    }
    const auto step =
        F::residual_linear_quantize(inputs, linear, mask, estimates_levels() ? estimator : "none");
    losses = step.losses;
    return detail::LevelsResult{step.total, step.indices, step.codes};
  }

  detail::LevelResult quantize_level(int64_t index, const at::Tensor& residual) {
    auto& level = own_.levels.at(static_cast<size_t>(index));
    OptionalTensor chosen;
    if (chosen_) chosen = chosen_->select(-1, index).reshape({1, -1});
    const bool estimates = estimates_levels();
    results.push_back(level->choose(rows_of(residual), row_mask,
                                    estimates ? estimator_of(own_, *level) : "none", chosen));
    const auto& found = results.back();
    auto codes = estimates ? found.quantized : found.codes;
    // Codes receive gradients only from the losses.
    if (training_ && !estimates) codes = codes.detach();
    return {codes.view_as(residual), found.indices.view({residual.size(0), residual.size(1)})};
  }

  ResidualSimVQImpl& own_;
  bool training_;
  OptionalTensor chosen_;  // (B, N, Q), of a beam
};

ResidualSimVQOutput ResidualSimVQImpl::forward(const torch::Tensor& x,
                                               const ResidualSimVQForwardOptions& call) {
  const auto mask = detail::checked_mask(layout(), x, call.mask());
  const auto& seed = call.rand_quantize_dropout_fixed_seed();
  const bool dropping = is_training() && drops();
  detail::check_depths("ResidualSimVQ", dropping && !seed, rng);
  const auto group =
      detail::shared_group(levels, [](const SimVQImpl& level) { return level.group(); });
  // Before anything is drawn, so that ranks have equal state.
  if (!group.empty()) handshake(group);
  std::optional<int64_t> drawn;
  const auto depth = detail::depth_in_use(options, dropping, seed, rng, drawn);
  Stack stack(*this);
  const auto found = detail::run_stack(stack, x, mask, depth, call.return_all_codes());
  if (dropping && !seed) ops::advance_rng_(rng);
  auto codes = found.all_codes;
  if (codes.defined()) codes = placed(codes, options.channel_first());
  return {found.quantized, found.indices, losses(stack), codes};
}

torch::Tensor ResidualSimVQImpl::losses(const Stack& stack) {
  const auto every = options.num_quantizers();
  std::vector<torch::Tensor> losses;
  if (stack.losses.defined()) {
    if (stack.losses.size(0) == every) return stack.losses;
    losses = stack.losses.unbind();
  }
  for (size_t index = 0; index < stack.results.size(); ++index) {
    losses.push_back(levels[index]->loss_of(stack.results[index], stack.row_mask));
  }
  if (is_training()) {
    // Distributed wrappers wait for a gradient of every parameter: those of
    // dropped levels get zero.
    const auto nothing = losses[0].new_zeros({1, 0, options.dim() / options.heads()});
    for (size_t index = losses.size(); index < levels.size(); ++index) {
      const auto none = levels[index]->choose(nothing, std::nullopt, "none");
      losses.push_back(levels[index]->loss_of(none, std::nullopt));
    }
  }
  return detail::stack_levels(std::move(losses), every, 0);
}

void ResidualSimVQImpl::handshake(const std::string& group) const {
  distributed::HandshakeOptions call;
  call.group_name = group;
  call.label = "ResidualSimVQ(dim=" + std::to_string(options.dim()) +
               ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
  call.handle = levels[0]->handle();
  call.signature = call.label + " of " + std::to_string(options.num_quantizers()) + " levels";
  if (drops()) {
    call.signature += ", dropout from " + std::to_string(options.quantize_dropout_cutoff_index()) +
                      " in multiples of " + std::to_string(options.quantize_dropout_multiple_of());
  }
  std::vector<torch::Tensor> state;
  if (rng.defined()) state.push_back(rng);
  for (const auto& level : levels) state.push_back(level->frozen_codebook);
  distributed::handshake_(state, call);
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor ResidualSimVQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  Stack stack(*this);
  return placed(detail::stack_codes(stack, indices, drops()), options.channel_first());
}

torch::Tensor ResidualSimVQImpl::get_output_from_indices(const torch::Tensor& indices) {
  Stack stack(*this);
  return detail::stack_output(stack, indices, drops());
}

torch::Tensor ResidualSimVQImpl::codebooks() {
  std::vector<torch::Tensor> codes;
  for (auto& level : levels) codes.push_back(level->codebook());
  return detail::stacked(codes);
}

}  // namespace torchvq
