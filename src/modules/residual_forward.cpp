// The forward of ResidualVQ.
#include <algorithm>
#include <ios>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torchvq/functional/quantize_depth.h>

#include "detail/checks.h"
#include "detail/joined.h"
#include "modules/call_checks.h"
#include "modules/learn_levels.h"
#include "modules/messages.h"
#include "modules/ranks.h"
#include "modules/residual_beam.h"
#include "modules/residual_engine.h"
#include "modules/residual_evaluation.h"
#include "modules/residual_levels.h"
#include "modules/residual_step.h"
#include "modules/search.h"
#include "modules/stats.h"
#include "modules/undo.h"

namespace torchvq {
namespace detail {

namespace F = functional;

namespace {

/// The targets of each level, checked.
std::vector<torch::Tensor> targets_of(const ResidualVQImpl& rvq, const torch::Tensor& x,
                                      const ResidualVQForwardOptions& call) {
  if (!call.indices()) {
    return {};
  }
  const auto& indices = *call.indices();
  check_defined("ResidualVQ", "indices", indices);
  const auto levels = indices.dim() > 0 ? indices.size(-1) : 0;
  TORCH_CHECK_VALUE(levels == rvq.num_quantizers(), "ResidualVQ: expected indices to have ",
                    rvq.num_quantizers(), " levels, but got ", levels);
  auto targets = indices.unbind(-1);
  for (size_t level = 0; level < targets.size(); ++level) {
    check_targets(targets[level], x, layout_of(rvq), rvq.levels[level]->options.codebook_size());
  }
  return targets;
}

/// The number of levels that this forward uses.
int64_t depth_of(const ResidualVQImpl& rvq, std::optional<int64_t> seed) {
  const auto& options = rvq.options;
  if (!rvq.is_training() || !options.quantize_dropout() || rvq.num_quantizers() == 1) {
    return rvq.num_quantizers();
  }
  const F::DepthRule rule{rvq.num_quantizers(), options.quantize_dropout_cutoff_index(),
                          options.quantize_dropout_multiple_of()};
  return seed ? F::seeded_depth(*seed, rule)
              : F::drawn_depth(rvq.levels[0]->codebook_state->rng, rule);
}

torch::Tensor restore(ResidualVQImpl& rvq, const torch::Tensor& output, const torch::Tensor& x,
                      const StackRequest& request) {
  const auto layout = layout_of(rvq);
  const auto padding = request.mask && !rvq.options.return_zeros_for_masked_padding()
                           ? std::optional(layout.pack(x))
                           : std::nullopt;
  return leave_stack(layout.merge_features(output, request.batch, request.tokens), x, request.mask,
                     layout, rvq.project_out, padding);
}

/// Greedy search level by level, without losses or learning: the most common evaluation.
ResidualVQOutput evaluate(ResidualVQImpl& rvq, const torch::Tensor& inputs, const torch::Tensor& x,
                          const StackRequest& request) {
  const auto layout = layout_of(rvq);
  const auto mask = layout.split_mask(request.mask);
  std::vector<torch::Tensor> codebooks;
  for (auto& level : rvq.levels) {
    level->codebook_state->prepare(inputs, mask, /*training=*/false);
    codebooks.push_back(stored_codes(*level, inputs.scalar_type()));
  }
  const auto found =
      encode_levels(inputs, codebooks, rvq.levels[0]->codebook_state->metric(), mask);
  return {restore(rvq, found.quantized, x, request),
          layout.restore_positions(found.indices, x),
          inputs.new_zeros({rvq.num_quantizers()}),
          {}};
}

/// Converts the results of the operator for all levels.
ResidualVQOutput result_of(const Pending& pending, const F::ResidualQuantizeStep& step) {
  auto& rvq = *pending.rvq;
  const auto& [x, request] = std::tie(pending.x, pending.request);
  const auto layout = layout_of(rvq);
  ResidualVQOutput result{restore(rvq, step.quantized, x, request),
                          layout.restore_positions(step.indices, x),
                          request.targets.empty() ? step.losses : step.losses.sum(),
                          {}};
  if (!pending.all_codes) return result;
  if (rvq.options.vq().vqp_compat()) {
    // The reference looks codes up after the update, with gradients.
    result.all_codes = rvq.get_codes_from_indices(result.indices);
    return result;
  }
  std::vector<torch::Tensor> codes;
  for (const auto& level : step.codes) {
    const auto rows = layout.merge_features(level, request.batch, request.tokens);
    codes.push_back(restore_codes(rows, x, request.mask, layout));
  }
  result.all_codes = stack_levels(std::move(codes), rvq.num_quantizers(), 0);
  return result;
}

ResidualVQOutput result_of(const Pending& pending, const Walk& walk, const torch::Tensor& loss) {
  auto& rvq = *pending.rvq;
  const auto& [x, request] = std::tie(pending.x, pending.request);
  const auto layout = layout_of(rvq);
  std::vector<torch::Tensor> indices, codes;
  for (const auto& level : walk.levels) {
    const auto& searched = level.result.searched;
    indices.push_back(layout.restore_positions(searched.indices, x));
    if (pending.all_codes) {
      const auto rows = layout.merge_features(searched.codes, request.batch, request.tokens);
      codes.push_back(restore_codes(rows, x, request.mask, layout));
    }
  }
  const auto every = rvq.num_quantizers();
  ResidualVQOutput result{
      restore(rvq, walk.output, x, request), stack_levels(std::move(indices), every, -1, -1),
      request.targets.empty() ? loss : loss.sum(),
      pending.all_codes ? stack_levels(std::move(codes), every, 0) : torch::Tensor()};
  if (pending.all_codes && rvq.options.vq().vqp_compat()) {
    // The reference looks codes up after the update, with gradients.
    result.all_codes = rvq.get_codes_from_indices(result.indices);
  }
  return result;
}

/// The options of the stack in which all ranks must agree; those of its levels are separate.
std::string stack_signature(const ResidualVQImpl& rvq) {
  const auto& options = rvq.options;
  std::ostringstream text;
  text << std::boolalpha << "ResidualVQ of " << rvq.num_quantizers() << " levels, shared "
       << options.shared_codebook() << ", implicit " << options.implicit_neural_codebook()
       << ", dropout " << options.quantize_dropout() << " from "
       << options.quantize_dropout_cutoff_index() << " in multiples of "
       << options.quantize_dropout_multiple_of() << ", frozen levels";
  for (int64_t index = 0; index < rvq.num_quantizers(); ++index) {
    const auto& level = *rvq.levels[index];
    const bool kept = level.codebook_state->keeps_statistics();
    const bool left_out = level.options.freeze_codebook() || (kept && !trains(level, false));
    if (left_out) text << " " << index;
  }
  text << (rvq.in_place_state_loaded() ? ", own optimizer with loaded state" : "");
  return text.str();
}

}  // namespace

StackRequest checked_request(const ResidualVQImpl& rvq, const torch::Tensor& x,
                             const ResidualVQForwardOptions& call) {
  const auto layout = layout_of(rvq);
  layout.check_input(x);
  check_temperature(rvq.levels[0]->options, call.sample_codebook_temp(), layout.owner);
  const bool frozen =
      std::all_of(rvq.levels.begin(), rvq.levels.end(),
                  [](const VectorQuantize& level) { return level->options.freeze_codebook(); });
  return {
      .mask = layout.token_mask(x, call.mask(), std::nullopt),
      .batch = 0,
      .tokens = 0,
      .targets = targets_of(rvq, x, call),
      .temperature = call.sample_codebook_temp(),
      .frozen = call.freeze_codebook() || frozen,
      .depth = 0,
      .ranks = ranks_of(synced_level(rvq.levels), "ResidualVQ"),
      .beam = beam_of(rvq, call.beam_size()),
  };
}

Pending start(ResidualVQImpl& rvq, const torch::Tensor& x, const ResidualVQForwardOptions& call,
              StackRequest request, std::optional<int64_t>& depth, bool together) {
  const auto layout = layout_of(rvq);
  const auto tokens =
      enter_stack(x, sees_padding(rvq) ? std::nullopt : request.mask, layout, rvq.project_in);
  const auto& seed = call.rand_quantize_dropout_fixed_seed();
  const bool seeded = rvq.is_training() && rvq.options.quantize_dropout() && seed;
  if (!depth && seeded) depth = depth_of(rvq, seed);
  if (!request.ranks.alone()) {
    // Before a depth is drawn, so that ranks draw the same one.
    agree_in_stack({.first = *rvq.levels[0],
                    .codebooks = codebooks_of(rvq),
                    .signature = stack_signature(rvq),
                    .frozen = request.frozen,
                    .dtype = tokens.scalar_type(),
                    .seeded_depth = seeded ? depth : std::nullopt},
                   request.ranks);
  }
  if (rvq.is_training()) {
    begin_step(codebooks_of(rvq));
  }
  if (!depth) {
    depth = depth_of(rvq, std::nullopt);
  }
  request.depth = *depth;
  request.batch = tokens.size(0);
  request.tokens = tokens.size(1);
  const auto inputs = layout.split_heads(tokens);
  const bool plain = !rvq.is_training() && request.targets.empty() && request.beam == 1 &&
                     !rvq.options.implicit_neural_codebook() && !call.return_all_codes();
  Pending pending{&rvq, x, std::move(request), call.return_all_codes(), std::nullopt, {}};
  if (plain) {
    pending.output = evaluate(rvq, inputs, x, pending.request);
  } else if (steps_at_once(rvq, tokens) && (pending.request.ranks.alone() || !together)) {
    pending.output =
        result_of(pending, step_at_once(rvq, tokens, pending.request, pending.all_codes));
  } else {
    pending.walk = walk(rvq, inputs, pending.request);
  }
  return pending;
}

std::vector<ResidualVQOutput> finish(const std::vector<Pending>& stacks) {
  std::vector<Searched> searched;
  for (const auto& pending : stacks) {
    if (pending.walk) searched.push_back({pending.rvq, &*pending.walk, &pending.request});
  }
  const auto losses = searched.empty() ? std::vector<at::Tensor>() : learn(searched);
  std::vector<ResidualVQOutput> results;
  auto loss = losses.begin();
  for (const auto& pending : stacks) {
    results.push_back(pending.walk ? result_of(pending, *pending.walk, *loss++) : pending.output);
  }
  return results;
}

}  // namespace detail

ResidualVQOutput ResidualVQImpl::forward(const torch::Tensor& x,
                                         const ResidualVQForwardOptions& call) {
  const auto run = [&] {
    std::optional<int64_t> depth;
    auto request = detail::checked_request(*this, x, call);
    return detail::finish(
        {detail::start(*this, x, call, std::move(request), depth, /*together=*/false)})[0];
  };
  return is_training() ? detail::counted_unless_it_fails(detail::levels_of({this}), run) : run();
}

}  // namespace torchvq
