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
#include "modules/projection.h"
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

bool drops_levels(const ResidualVQImpl& rvq) {
  return rvq.is_training() && rvq.options.quantize_dropout() && rvq.num_quantizers() > 1;
}

/// The number of levels that a forward uses that drops some.
int64_t drawn_depth_of(const ResidualVQImpl& rvq, std::optional<int64_t> seed) {
  const auto& options = rvq.options;
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
  return restore_output(layout.merge_features(output, request.batch, request.tokens), x,
                        request.mask, layout, rvq.project_out, padding);
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

/// Converts the results of all levels.
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

/// The results of a walk in the form of those of the operator for all levels.
F::ResidualQuantizeStep as_step(const Walk& walk, const torch::Tensor& losses) {
  std::vector<torch::Tensor> indices, codes;
  for (const auto& level : walk.levels) {
    indices.push_back(level.result.searched.indices);
    codes.push_back(level.result.searched.codes);
  }
  return {walk.output,
          stack_levels(std::move(indices), losses.size(0), -1, -1),
          losses,
          std::move(codes),
          {}};
}

/// The options of the stack in which all ranks must agree; those of its levels are separate.
std::string stack_signature(const ResidualVQImpl& rvq) {
  const auto& options = rvq.options;
  std::ostringstream text;
  text << std::boolalpha << "ResidualVQ of " << rvq.num_quantizers() << " levels, shared "
       << options.shared_codebook() << ", implicit " << options.implicit_neural_codebook()
       << ", dropout " << options.quantize_dropout() << " from "
       << options.quantize_dropout_cutoff_index() << " in multiples of "
       << options.quantize_dropout_multiple_of() << ", frozen levels"
       << numbers_of(levels_of(rvq), [](const VectorQuantizeImpl& level) {
            return level.options.freeze_codebook();
          });
  if (rvq.has_in_place_optimizer()) {
    text << ", own optimizer " << rvq.in_place_optimizer_text();
  }
  return text.str();
}

}  // namespace

StackRequest checked_request(const ResidualVQImpl& rvq, const torch::Tensor& x,
                             const ResidualVQForwardOptions& call) {
  const auto layout = layout_of(rvq);
  layout.check_input(x);
  rvq.check_diveq();
  for (const auto& level : rvq.levels) {
    check_affine_param(*level);
    check_temperature(level->options, call.sample_codebook_temp(), layout.owner);
  }
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
      .ranks = ranks_of(synced_level(rvq.levels), "ResidualVQ", rvq.options.dim()),
      .beam = beam_of(rvq, call.beam_size()),
      .groups = {},
  };
}

Pending start(ResidualVQImpl& rvq, const torch::Tensor& x, const ResidualVQForwardOptions& call,
              StackRequest request, std::optional<int64_t>& depth) {
  const auto layout = layout_of(rvq);
  const auto tokens =
      enter_stack(x, sees_padding(rvq) ? std::nullopt : request.mask, layout, rvq.project_in);
  const auto& seed = call.rand_quantize_dropout_fixed_seed();
  const bool drops = drops_levels(rvq);
  const bool seeded = drops && seed;
  if (!depth && seeded) depth = drawn_depth_of(rvq, seed);
  if (!request.ranks.alone()) {
    // Before a depth is drawn, so that ranks draw the same one.
    agree_in_stack({.levels = levels_of(rvq),
                    .codebooks = codebooks_of(rvq),
                    .signature = stack_signature(rvq) + request.groups,
                    .frozen = request.frozen,
                    .dtype = tokens.scalar_type(),
                    .seeded_depth = seeded ? depth : std::nullopt},
                   request.ranks);
  }
  // Of all levels and groups before the first one learns. On ranks after their handshake, which
  // compares most options: a rank that threw alone would leave the others waiting.
  if (rvq.is_training()) {
    for (const auto& level : rvq.levels) check_options_set_later(*level);
  }
  if (!depth && drops) depth = drawn_depth_of(rvq, std::nullopt);
  request.depth = drops ? *depth : rvq.num_quantizers();
  request.batch = tokens.size(0);
  request.tokens = tokens.size(1);
  return {&rvq, x, tokens, std::move(request), call.return_all_codes(), {}, {}};
}

namespace {

/// Whether a stack learns by itself: with others it waits until all have searched, if they share
/// messages, or if the caller's bridge may fail in a later one.
bool learns_by_itself(const Pending& stack, bool together) {
  return !together ||
         (stack.request.ranks.alone() && stack.rvq->options.vq().vq_bridge().is_empty());
}

void search_stack(Pending& pending, bool together) {
  auto& rvq = *pending.rvq;
  const auto& [tokens, request] = std::tie(pending.tokens, pending.request);
  if (rvq.is_training()) reset_replaced(codebooks_of(rvq));
  const auto inputs = layout_of(rvq).split_heads(tokens);
  const bool plain = !rvq.is_training() && request.targets.empty() && request.beam == 1 &&
                     !rvq.options.implicit_neural_codebook() && !pending.all_codes;
  if (plain) {
    pending.output = evaluate(rvq, inputs, pending.x, request);
  } else if (learns_by_itself(pending, together) && steps_at_once(rvq, tokens)) {
    pending.output = result_of(pending, step_at_once(rvq, tokens, request, pending.all_codes));
  } else {
    pending.walk = walk(rvq, inputs, request);
  }
}

bool is_walked(const Pending& pending) { return !pending.walk.levels.empty(); }

/// Scores and learns after the search.
std::vector<ResidualVQOutput> results_of(const std::vector<Pending>& stacks) {
  std::vector<const Pending*> searched;
  for (const auto& pending : stacks) {
    if (is_walked(pending)) searched.push_back(&pending);
  }
  const auto losses = searched.empty() ? std::vector<at::Tensor>() : learn(searched);
  std::vector<ResidualVQOutput> results;
  auto loss = losses.begin();
  for (const auto& pending : stacks) {
    results.push_back(is_walked(pending) ? result_of(pending, as_step(pending.walk, *loss++))
                                         : pending.output);
  }
  return results;
}

}  // namespace

std::vector<ResidualVQOutput> finish(std::vector<Pending> stacks) {
  const auto run = [&] {
    for (auto& pending : stacks) search_stack(pending, /*together=*/stacks.size() > 1);
    return results_of(stacks);
  };
  std::vector<VectorQuantizeImpl*> training;
  for (const auto& pending : stacks) {
    if (!pending.rvq->is_training()) continue;
    const auto levels = levels_of(*pending.rvq);
    training.insert(training.end(), levels.begin(), levels.end());
  }
  return training.empty() ? run() : undone_if_it_fails(std::move(training), run);
}

}  // namespace detail

ResidualVQOutput ResidualVQImpl::forward(const torch::Tensor& x,
                                         const ResidualVQForwardOptions& call) {
  std::optional<int64_t> depth;
  auto request = detail::checked_request(*this, x, call);
  return detail::finish({detail::start(*this, x, call, std::move(request), depth)})[0];
}

}  // namespace torchvq
