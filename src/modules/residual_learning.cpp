// What the levels of a residual stack learn: losses, one exchange of statistics, updates.
#include <functional>
#include <utility>

#include <ATen/ops/cat.h>

#include "modules/diversity.h"
#include "modules/losses.h"
#include "modules/ranks.h"
#include "modules/residual_engine.h"
#include "modules/residual_levels.h"
#include "modules/stats.h"

namespace torchvq::detail {
namespace {

/// Commitment and diversity, which are about the codes that were searched.
LossBreakdown search_loss(const Level& level, const std::optional<at::Tensor>& totals) {
  const auto& [vq, call, choice, implicit] = level;
  const auto& chosen = choice.chosen;
  LossBreakdown terms;
  if (!implicit) {
    terms.commitment = commitment(*vq, chosen, call);
    terms.codebook_diversity = diversity(*vq, chosen, totals);
    return terms;
  }
  const bool by_entropy = vq->is_training() && vq->has_commitment_loss() &&
                          vq->options.commitment_use_cross_entropy_loss();
  if (call.targets) {
    const auto targets = layout_of(vq->options, "ResidualVQ").split_indices(*call.targets);
    terms.commitment = implicit_cross_entropy(*implicit, chosen, targets);
  } else if (by_entropy) {
    terms.commitment = implicit_cross_entropy(*implicit, chosen, chosen.indices);
  } else {
    terms.commitment = commitment(*vq, chosen, call);
  }
  if (vq->is_training() && vq->options.codebook_diversity_loss_weight() > 0) {
    terms.codebook_diversity = implicit_diversity(
        *implicit, chosen, vq->options.codebook_diversity_temperature(), call.ranks);
  }
  return terms;
}

std::vector<LossBreakdown> search_losses(const ResidualVQImpl& rvq,
                                         const std::vector<Level>& levels, const Ranks& ranks) {
  // Levels whose codes are made for each token share their own way; the first has a plain codebook.
  const size_t plain = rvq.options.implicit_neural_codebook() ? 1 : rvq.levels.size();
  std::vector<const VectorQuantizeImpl*> sharing;
  std::vector<std::reference_wrapper<const Chosen>> chosen;
  for (size_t index = 0; index < plain; ++index) {
    sharing.push_back(rvq.levels[index].get());
    if (index < levels.size()) {
      chosen.emplace_back(levels[index].choice.chosen);
    }
  }
  auto totals = shared_totals(sharing, chosen, ranks);
  totals.resize(levels.size());
  std::vector<LossBreakdown> found;
  for (size_t index = 0; index < levels.size(); ++index) {
    found.push_back(search_loss(levels[index], totals[index]));
  }
  return found;
}

/// The weighted loss of one level, a scalar, when its codebook has learnt.
at::Tensor level_loss(const Level& level, LossBreakdown terms) {
  const auto& chosen = level.choice.chosen;
  terms.orthogonal_reg = orthogonal(*level.vq, chosen.indices);
  terms.inplace_optimize = level.choice.in_place;
  return total(*level.vq, breakdown(chosen.inputs, std::move(terms)), level.call);
}

/// As in the reference, a shared codebook moves once for each level.
std::vector<at::Tensor> learn_in_turn(const std::vector<Level>& levels) {
  std::vector<at::Tensor> counts;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    const auto found = level.vq->codebook_state->learn(chosen.inputs, chosen.indices, chosen.mask,
                                                       level.call.ema_update, /*accumulate=*/false,
                                                       std::nullopt, level.call.ranks);
    if (found) {
      counts.push_back(*found);
    }
  }
  return counts;
}

/// A shared codebook sees the residuals of all levels as the tokens of one step.
std::vector<at::Tensor> learn_once(const std::vector<Level>& levels) {
  std::vector<at::Tensor> inputs, indices, masks;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    inputs.push_back(chosen.inputs);
    indices.push_back(chosen.indices);
    if (chosen.mask) {
      masks.push_back(*chosen.mask);
    }
  }
  const auto& first = levels[0];
  const auto counts = first.vq->codebook_state->learn(
      at::cat(inputs, 1), at::cat(indices, 1),
      masks.empty() ? std::nullopt : std::optional(at::cat(masks, 1)), first.call.ema_update,
      /*accumulate=*/false, std::nullopt, first.call.ranks);
  return counts ? std::vector<at::Tensor>{*counts} : std::vector<at::Tensor>();
}

/// Each level its own codebook, one exchange for all.
std::vector<at::Tensor> learn_together(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                                       const Request& request) {
  std::vector<functional::CodebookState> states;
  std::string signature;
  // Codebooks of levels that are not in use take part with nothing: what ranks exchange must not
  // depend on the depth.
  for (const auto& level : rvq.levels) {
    auto& codebook = *level->codebook_state.ptr();
    states.push_back(codebook.state());
    signature += (signature.empty() ? "" : "; ") + codebook.signature();
  }
  std::vector<functional::TaughtTokens> tokens;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    tokens.push_back(
        {level.vq->codebook_state->raw_inputs(chosen.inputs), chosen.indices, chosen.mask});
  }
  const auto& first = levels[0];
  auto options = first.vq->codebook_state->learning(first.call.ema_update, request.ranks);
  return functional::learn_codebooks_(states, tokens, options.signature(signature));
}

/// Moves the averages and codes of all levels, and replaces dead codes, by what the search has
/// found. Returns the tokens per code of each level, of all ranks; nothing if no level learns.
std::vector<at::Tensor> update(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                               const Request& request) {
  const auto& first = levels[0];
  if (!first.vq->codebook_state->learns(first.call.ema_update)) {
    return {};
  }
  if (first.vq->options.vqp_compat() && request.beam > 1 && levels.size() > 1) {
    // The reference's other levels do not learn under a beam.
    return update(rvq, {first}, request);
  }
  if (!rvq.options.shared_codebook()) {
    return learn_together(rvq, levels, request);
  }
  return first.vq->options.vqp_compat() ? learn_in_turn(levels) : learn_once(levels);
}

/// Keeps the tokens per code of all levels for stats().
void keep_uses(const ResidualVQImpl& rvq, const std::vector<Level>& levels) {
  std::vector<VectorQuantizeImpl*> all;
  for (const auto& level : rvq.levels) {
    all.push_back(level.ptr().get());
  }
  std::vector<at::Tensor> indices;
  for (const auto& level : levels) {
    indices.push_back(level.choice.chosen.indices);
  }
  keep_counts(all, indices);
}

/// The next draws are new ones.
void count_step(const ResidualVQImpl& rvq, const std::vector<Level>& levels,
                const std::vector<at::Tensor>& counts, const Ranks& ranks) {
  const size_t codebooks = rvq.options.shared_codebook() ? 1 : levels.size();
  for (size_t index = 0; index < codebooks; ++index) {
    const auto& chosen = levels[index].choice.chosen;
    const auto used = index < counts.size() ? std::optional(counts[index]) : std::nullopt;
    advance_rng(levels[index].vq->codebook_state->rng, used, chosen.mask, chosen.inputs, ranks);
  }
}

}  // namespace

namespace {

/// Whether a frozen stack takes numbers from its generators.
bool draws(const ResidualVQImpl& rvq) {
  const auto& vq = rvq.options.vq();
  return rvq.options.quantize_dropout() || rvq.options.diveq() || vq.stochastic_sample_codes() ||
         vq.directional_reparam() ||
         (vq.orthogonal_reg_weight() > 0 && vq.orthogonal_reg_max_codes());
}

}  // namespace

at::Tensor learn(ResidualVQImpl& rvq, const Walk& walk, const Request& request) {
  const auto& levels = walk.levels;
  auto found = search_losses(rvq, levels, request.ranks);
  std::vector<at::Tensor> counts;
  if (rvq.is_training() && !request.frozen) {
    counts = update(rvq, levels, request);
  }
  std::vector<at::Tensor> losses;
  for (size_t index = 0; index < levels.size(); ++index) {
    losses.push_back(level_loss(levels[index], std::move(found[index])));
  }
  if (rvq.is_training()) {
    keep_uses(rvq, levels);
    if (!request.frozen || draws(rvq)) count_step(rvq, levels, counts, request.ranks);
  }
  return stack_levels(std::move(losses), rvq.num_quantizers(), 0);
}

}  // namespace torchvq::detail
