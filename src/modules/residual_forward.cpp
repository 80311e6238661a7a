// The forward of ResidualVQ.
#include <optional>
#include <utility>
#include <vector>

#include <torchvq/functional/quantize_depth.h>

#include "detail/joined.h"
#include "modules/ranks.h"
#include "modules/residual_beam.h"
#include "modules/residual_engine.h"
#include "modules/residual_evaluation.h"
#include "modules/residual_levels.h"
#include "modules/residual_step.h"
#include "modules/search.h"
#include "modules/stats.h"

namespace torchvq {

namespace F = functional;

namespace {

using detail::Request;

std::vector<torch::Tensor> targets_of(const ResidualVQImpl& rvq,
                                      const ResidualVQForwardOptions& call) {
  if (!call.indices()) {
    return {};
  }
  const auto& indices = *call.indices();
  const auto levels = indices.dim() > 0 ? indices.size(-1) : 0;
  TORCH_CHECK_VALUE(levels == rvq.num_quantizers(), "ResidualVQ: expected indices to have ",
                    rvq.num_quantizers(), " levels, but got ", levels);
  return indices.unbind(-1);
}

/// How many levels this forward uses.
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
                      const Request& request) {
  const auto layout = detail::layout_of(rvq);
  const auto padding = request.mask && !rvq.options.return_zeros_for_masked_padding()
                           ? std::optional(layout.pack(x))
                           : std::nullopt;
  return detail::leave_stack(layout.merge_features(output, request.batch, request.tokens), x,
                             request.mask, layout, rvq.project_out, padding);
}

/// Nearest codes level by level, nothing scored, nothing learnt: the pass of most evaluations.
ResidualVQOutput evaluate(ResidualVQImpl& rvq, const torch::Tensor& inputs, const torch::Tensor& x,
                          const Request& request) {
  const auto layout = detail::layout_of(rvq);
  const auto mask = layout.split_mask(request.mask);
  std::vector<torch::Tensor> codebooks;
  for (auto& level : rvq.levels) {
    level->codebook_state->prepare(inputs, mask, /*training=*/false);
    codebooks.push_back(detail::stored_codes(*level, inputs.scalar_type()));
  }
  const auto found =
      detail::encode_levels(inputs, codebooks, rvq.levels[0]->codebook_state->metric(), mask);
  return {restore(rvq, found.quantized, x, request),
          layout.restore_positions(found.indices, x),
          inputs.new_zeros({rvq.num_quantizers()}),
          {}};
}

/// What all levels have found at once.
ResidualVQOutput result_of(ResidualVQImpl& rvq, const F::ResidualQuantizeStep& step,
                           const torch::Tensor& x, const Request& request, bool all_codes) {
  const auto layout = detail::layout_of(rvq);
  ResidualVQOutput result{restore(rvq, step.quantized, x, request),
                          layout.restore_positions(step.indices, x),
                          request.targets.empty() ? step.losses : step.losses.sum(),
                          {}};
  if (!all_codes) return result;
  std::vector<torch::Tensor> codes;
  for (const auto& level : step.codes) {
    const auto rows = layout.merge_features(level, request.batch, request.tokens);
    codes.push_back(detail::restore_codes(rows, x, request.mask, layout));
  }
  result.all_codes = detail::stack_levels(std::move(codes), rvq.num_quantizers(), 0);
  return result;
}

ResidualVQOutput result_of(ResidualVQImpl& rvq, const detail::Walk& walk, const torch::Tensor& loss,
                           const torch::Tensor& x, const Request& request, bool all_codes) {
  const auto layout = detail::layout_of(rvq);
  std::vector<torch::Tensor> indices, codes;
  for (const auto& level : walk.levels) {
    const auto& chosen = level.choice.chosen;
    indices.push_back(layout.restore_positions(chosen.indices, x));
    if (all_codes) {
      const auto rows = layout.merge_features(chosen.codes, request.batch, request.tokens);
      codes.push_back(detail::restore_codes(rows, x, request.mask, layout));
    }
  }
  const auto every = rvq.num_quantizers();
  return {restore(rvq, walk.output, x, request),
          detail::stack_levels(std::move(indices), every, -1, -1),
          request.targets.empty() ? loss : loss.sum(),
          all_codes ? detail::stack_levels(std::move(codes), every, 0) : torch::Tensor()};
}

}  // namespace

ResidualVQOutput ResidualVQImpl::forward(const torch::Tensor& x,
                                         const ResidualVQForwardOptions& call) {
  std::optional<int64_t> depth;
  return forward_to_depth(x, call, depth);
}

ResidualVQOutput ResidualVQImpl::forward_to_depth(const torch::Tensor& x,
                                                  const ResidualVQForwardOptions& call,
                                                  std::optional<int64_t>& depth) {
  const auto layout = detail::layout_of(*this);
  layout.check(x);
  Request request{
      .mask = layout.token_mask(x, call.mask(), std::nullopt),
      .batch = 0,
      .tokens = 0,
      .targets = targets_of(*this, call),
      .temperature = call.sample_codebook_temp(),
      .frozen = call.freeze_codebook() || levels[0]->options.freeze_codebook(),
      .depth = 0,
      .ranks = detail::ranks_of(*levels[0], "ResidualVQ"),
      .beam = detail::beam_of(*this, call.beam_size()),
  };
  // Before the depth is drawn, so that ranks draw the same.
  detail::shake_hands(detail::codebooks_of(*this), request.ranks);
  if (is_training()) {
    detail::begin_step(detail::codebooks_of(*this));
  }
  if (!depth) {
    depth = depth_of(*this, call.rand_quantize_dropout_fixed_seed());
  }
  request.depth = *depth;
  const auto tokens = detail::enter_stack(x, request.mask, layout, project_in);
  request.batch = tokens.size(0);
  request.tokens = tokens.size(1);
  const auto inputs = layout.split_heads(tokens);
  const bool plain = !is_training() && request.targets.empty() && request.beam == 1 &&
                     !options.implicit_neural_codebook() && !call.return_all_codes();
  if (plain) {
    return evaluate(*this, inputs, x, request);
  }
  auto result = [&] {
    const bool all_codes = call.return_all_codes();
    if (detail::steps_at_once(*this)) {
      return result_of(*this, detail::step_at_once(*this, tokens, request), x, request, all_codes);
    }
    const auto walk = detail::walk(*this, inputs, request);
    const auto loss = detail::learn(*this, walk, request);
    return result_of(*this, walk, loss, x, request, all_codes);
  }();
  if (call.return_all_codes() && options.vq().vqp_compat()) {
    // The reference looks codes up when they have moved, with their gradient.
    result.all_codes = get_codes_from_indices(result.indices);
  }
  return result;
}

}  // namespace torchvq
