#include <torchvq/modules/residual_lfq.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <sstream>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/residual_lookup_free.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/sign_quantize.h>
#include <torchvq/ops/straight_through.h>

#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/projection.h"
#include "modules/random_state.h"
#include "modules/ranks.h"
#include "modules/residual_engine.h"
#include "modules/residual_stack.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// The options of a level: those given for all levels, with those that the stack sets.
LFQOptions level_options(const ResidualLFQOptions& options, int64_t level) {
  // Deep levels stay at the smallest normal float32: clamps to zero have no gradient but NaN.
  const double scale = std::pow(2.0, -static_cast<double>(std::min<int64_t>(level, 126)));
  auto own = options.lfq();
  own.dim(std::nullopt)
      .codebook_size(options.codebook_size())
      .codebook_scale(scale)
      .has_projections(std::nullopt)
      .channel_first(std::nullopt)
      .vqp_compat(options.vqp_compat());
  const auto clamp = options.soft_clamp_input_value();
  return own.soft_clamp_input_value(clamp ? std::optional(*clamp * scale) : std::nullopt);
}

/// Whether the output has the mean of the gradients of the levels. Where a level normalizes or
/// clamps its input, only a gradient through that keeps latents from growing. An activation has
/// another slope at each level.
bool averages_levels(const ResidualLFQOptions& options) {
  const bool bounds = options.lfq().spherical() || options.soft_clamp_input_value().has_value();
  const bool activates = !options.lfq().straight_through_activation().is_empty();
  return (bounds || activates) && !options.vqp_compat();
}

}  // namespace

ResidualLFQImpl::ResidualLFQImpl(ResidualLFQOptions options_, bool owns_activation)
    : options(std::move(options_)), built_from_(options), owns_activation_(owns_activation) {
  reset();
  if (levels[0]->is_unbounded()) {
    TORCH_WARN(
        "ResidualLFQ: commitment_loss_weight is 0, so nothing keeps latents from growing without "
        "bound; start with commitment_loss_weight 0.25, or set soft_clamp_input_value");
  }
}

void ResidualLFQImpl::reset() {
  options.validate();
  levels.clear();
  auto list = register_module("layers", torch::nn::ModuleList());
  for (int64_t level = 0; level < options.num_quantizers(); ++level) {
    levels.emplace_back(level_options(options, level), /*is_level=*/true,
                        owns_activation_ && level == 0);
    list->push_back(levels.back());
  }
  const auto inner = levels[0]->codebook_dim();
  if (options.dim() != inner) {
    project_in = register_module("project_in", torch::nn::Linear(options.dim(), inner));
    project_out = register_module("project_out", torch::nn::Linear(inner, options.dim()));
  }
  if (drops() || options.lfq().frac_per_sample_entropy() < 1) {
    rng = register_buffer("rng", detail::fresh_rng());
  }
}

void ResidualLFQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::ResidualLFQ(dim=" << options.dim()
         << ", codebook_size=" << options.codebook_size()
         << ", num_quantizers=" << options.num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> ResidualLFQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  auto& activation = own.lfq().straight_through_activation();
  activation = activation.clone(device);
  auto copy = std::make_shared<ResidualLFQImpl>(std::move(own), owns_activation_);
  detail::copy_tensors(*this, *copy, device);
  copy->copy_options(*this, device);
  return copy;
}

void ResidualLFQImpl::copy_options(const ResidualLFQImpl& other,
                                   const std::optional<torch::Device>& device) {
  detail::check_number_of("levels", other.levels.size(), levels.size());
  for (size_t level = 0; level < levels.size(); ++level) {
    levels[level]->copy_options(*other.levels[level], device);
  }
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.lfq().straight_through_activation(); });
}

// Forward -----------------------------------------------------------------------------------------

detail::Layout ResidualLFQImpl::layout() const {
  return {
      .dim = options.dim(), .channel_first = options.is_channel_first(), .owner = "ResidualLFQ"};
}

/// Levels draw tokens from the generator of the stack, which is made for it at construction.
void ResidualLFQImpl::check_draws() const {
  if (!is_training() || built_from_.lfq().frac_per_sample_entropy() < 1) return;
  const auto drawing = [](const LFQ& level) {
    return level->is_training() && level->options.frac_per_sample_entropy() < 1;
  };
  const bool draws = options.lfq().frac_per_sample_entropy() < 1 ||
                     std::any_of(levels.begin(), levels.end(), drawing);
  TORCH_CHECK_VALUE(!draws,
                    "ResidualLFQ: expected frac_per_sample_entropy to be given to the constructor, "
                    "which makes the generator of the draws, but got set on the module");
}

F::LookupFreeOptions ResidualLFQImpl::step_options(size_t level) const {
  const auto& own = *levels[level];
  const auto group = own.group();
  const bool summed = options.vqp_compat();
  return own.step_options()
      .estimates(own.is_training() && (summed || averages_levels(options)))
      // Losses over ranks, and those with summed gradients, are computed after all levels.
      .scores(own.is_training() && group.empty() && !summed)
      .ranks({group, label()});
}

struct ResidualLFQImpl::Stack final : detail::ResidualStack {
  Stack(ResidualLFQImpl& own, torch::Tensor draw) : own_(own), draw_(std::move(draw)) {
    using detail::StackGain;
    layout = own.layout();
    levels = own.options.num_quantizers();
    vqp_compat = own.options.vqp_compat();
    module = &own;
    const auto estimated =
        averages_levels(own.options) ? StackGain::kAveraged : StackGain::kEstimated;
    gain = own.is_training() && !vqp_compat ? estimated : StackGain::kSummed;
    project_in = own.project_in;
    project_out = own.project_out;
  }

  detail::LevelsResult process_levels(const at::Tensor& inputs, const OptionalTensor& mask,
                                      int64_t depth, bool all_codes) override {
    std::vector<F::LookupFreeLevel> own_levels;
    for (size_t level = 0; level < static_cast<size_t>(depth); ++level) {
      own_levels.push_back(
          {own_.levels.at(level)->step_arguments(mask, draw_), own_.step_options(level)});
    }
    step = F::residual_lookup_free_quantize(inputs, own_levels);
    detail::LevelsResult result{step.total, step.indices, {}};
    for (const auto& codes : step.codes) {
      if (all_codes) result.codes.push_back(codes.reshape(inputs.sizes()));
    }
    return result;
  }

  at::Tensor estimate(const at::Tensor& inputs, const at::Tensor& total) override {
    auto& activation = own_.levels[0]->options.straight_through_activation();
    return ops::straight_through(
        activation.is_empty() ? inputs : activation.forward<torch::Tensor>(inputs), total);
  }

  at::Tensor decode_level(int64_t index, const at::Tensor& indices) override {
    const auto& level = *own_.levels.at(static_cast<size_t>(index));
    const auto dtype = detail::decoding_dtype(project_out, level.orthogonal_rot);
    const auto codes = ops::sign_decode(indices, level.codebook_dim(), level.code_value(), dtype);
    return level.orthogonal_rot.defined() ? F::rotate_features(codes, level.orthogonal_rot, true)
                                          : codes;
  }

  Step step;  ///< of the forward

 private:
  ResidualLFQImpl& own_;
  torch::Tensor draw_;
};

std::string ResidualLFQImpl::group() const {
  return detail::shared_group(levels, [](const LFQImpl& level) { return level.group(); });
}

std::string ResidualLFQImpl::label() const {
  return "ResidualLFQ(dim=" + std::to_string(options.dim()) +
         ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
}

void ResidualLFQImpl::handshake(const std::string& group, const torch::Tensor& x) const {
  distributed::HandshakeOptions call;
  call.group_name = group;
  call.label = label();
  call.handle = levels[0]->handle_;
  // The dtype of the projected tokens; half precision becomes float32.
  const auto dtype = project_in ? project_in->weight.scalar_type() : x.scalar_type();
  std::ostringstream text;
  text << detail::tokens_text(dtype) << "; ResidualLFQ of " << options.num_quantizers()
       << " levels, ";
  if (drops()) {
    text << "dropout from " << options.quantize_dropout_cutoff_index() << " in multiples of "
         << options.quantize_dropout_multiple_of() << ", ";
  }
  text << levels[0]->signature();
  call.signature = text.str();
  std::vector<torch::Tensor> state{detail::on_device_of(x)};
  if (rng.defined()) state.push_back(rng);
  for (const auto& level : levels) {
    if (level->orthogonal_rot.defined()) state.push_back(level->orthogonal_rot);
  }
  distributed::handshake_(state, call);
}

ResidualLFQOutput ResidualLFQImpl::forward(const torch::Tensor& x,
                                           const ResidualLFQForwardOptions& call) {
  std::optional<int64_t> depth;
  // As in the reference, whose levels take images and volumes as LFQ does.
  const bool maps = x.defined() && x.dim() >= 4 && !project_in && x.size(1) == options.dim();
  std::vector<Pending> stacks{start(x, call, depth, options.is_channel_first() || maps)};
  finish(stacks);
  return stacks[0].output;
}

ResidualLFQImpl::Pending ResidualLFQImpl::start(const torch::Tensor& x,
                                                const ResidualLFQForwardOptions& call,
                                                std::optional<int64_t>& depth, bool channel_first) {
  auto own_layout = layout();
  own_layout.channel_first = channel_first;
  const auto mask = detail::checked_mask(own_layout, x, call.mask());
  const auto& seed = call.rand_quantize_dropout_fixed_seed();
  const bool dropping = is_training() && drops();
  const bool drawing = is_training() && options.lfq().frac_per_sample_entropy() < 1;
  detail::check_depths("ResidualLFQ", dropping && !seed, rng);
  check_draws();
  // Before anything is drawn or rotated, so that ranks have equal state.
  if (const auto ranks = group(); !ranks.empty()) handshake(ranks, x);
  const auto used = detail::depth_in_use(options, dropping, seed, rng, depth);
  Stack own(*this, drawing ? rng.clone() : torch::Tensor());
  own.layout = std::move(own_layout);
  const auto found = detail::run_stack(own, x, mask, used, call.return_all_codes());
  if (drawing || (dropping && !seed)) ops::advance_rng_(rng);
  const auto indices = keeps_codebook_axis() ? found.indices.unsqueeze(-2) : found.indices;
  return {.stack = this,
          .output = {found.quantized, indices, {}, found.all_codes},
          .step = std::move(own.step)};
}

// Losses ------------------------------------------------------------------------------------------

std::vector<torch::Tensor> ResidualLFQImpl::own_totals(const Step& step) const {
  std::vector<torch::Tensor> totals;
  for (size_t index = 0; index < step.signs.size(); ++index) {
    totals.push_back(F::lookup_free_totals(step.signs[index], step_options(index)));
  }
  // Dropped levels contribute zeros, so that the message does not depend on the depth.
  totals.resize(levels.size(), at::zeros_like(totals[0]));
  return totals;
}

torch::Tensor ResidualLFQImpl::losses(const Step& step,
                                      const std::vector<OptionalTensor>& totals) const {
  std::vector<torch::Tensor> own;
  bool waited = false;
  for (size_t index = 0; index < step.signs.size(); ++index) {
    auto how = step_options(index);
    if (!levels[index]->is_training() || how.scores()) {
      own.push_back(step.losses.select(0, static_cast<int64_t>(index)));
      continue;
    }
    waited = true;
    // A level that learns by itself has no part in the sums of the others.
    const auto total = levels[index]->group().empty() ? std::nullopt : totals[index];
    own.push_back(F::lookup_free_losses(step.signs[index], total, how.scores(true)).loss);
  }
  const auto dropped = static_cast<int64_t>(levels.size() - step.signs.size());
  return at::constant_pad_nd(waited ? at::stack(own) : step.losses, {0, dropped});
}

void ResidualLFQImpl::finish(std::vector<Pending>& stacks) {
  const auto count = stacks[0].stack->levels.size();
  std::vector<OptionalTensor> totals(stacks.size() * count);
  std::string group;
  for (const auto& pending : stacks) {
    if (group.empty()) group = pending.stack->group();
  }
  if (!group.empty()) {
    const auto label = stacks[0].stack->label();
    std::vector<torch::Tensor> parts;
    for (const auto& pending : stacks) {
      for (auto& part : pending.stack->own_totals(pending.step)) parts.push_back(std::move(part));
    }
    const auto summed =
        distributed::all_reduce_statistics(at::stack(parts), {group, label}).unbind();
    std::copy(summed.begin(), summed.end(), totals.begin());
  }
  auto next = totals.cbegin();
  for (auto& pending : stacks) {
    const auto own = next;
    next += static_cast<std::ptrdiff_t>(count);
    pending.output.loss = pending.stack->losses(pending.step, {own, next});
  }
}

// Codes -------------------------------------------------------------------------------------------

bool ResidualLFQImpl::keeps_codebook_axis() const { return levels[0]->keeps_codebook_axis(); }

torch::Tensor ResidualLFQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  const auto plain = detail::without_codebook_axis("ResidualLFQ", indices, keeps_codebook_axis());
  Stack stack(*this, {});
  return detail::stack_codes(stack, plain, drops());
}

torch::Tensor ResidualLFQImpl::get_output_from_indices(const torch::Tensor& indices) {
  const auto plain = detail::without_codebook_axis("ResidualLFQ", indices, keeps_codebook_axis());
  Stack stack(*this, {});
  return detail::stack_output(stack, plain, drops());
}

torch::Tensor ResidualLFQImpl::codebooks() const {
  std::vector<torch::Tensor> codes;
  for (const auto& level : levels) codes.push_back(level->codebook());
  return at::stack(codes);
}

}  // namespace torchvq
