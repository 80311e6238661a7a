#include <torchvq/functional/learn_codebooks.h>

#include <algorithm>

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/distributed/synced_replace_dead_codes_.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/functional/wide_codes.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_finish_.h>
#include <torchvq/ops/ema_update_.h>
#include <torchvq/ops/ema_update_tokens_.h>
#include <torchvq/ops/replace_dead_codes_.h>

#include "distributed/kept_statistics.h"
#include "distributed/step_in_flight.h"
#include "distributed/synced_step_statistics.h"
#include "functional/learning_in_flight.h"
#include "functional/step_checks.h"
#include "functional/step_codes.h"
#include "functional/step_tokens.h"
#include "ops/ema_update_.h"

namespace torchvq::functional {
namespace {

using Tensors = std::vector<at::Tensor>;

// With a threshold that the tokens of a step cannot meet, more would replace codes before they have
// learnt anything (docs/design/statistics.md).
constexpr double kMostReplacedPerToken = 0.25;

/// One mask per codebook, or none at all.
Tensors masks_of(const std::vector<StepTokens>& tokens) {
  const auto masked = [](const StepTokens& level) { return level.mask.has_value(); };
  Tensors masks;
  if (std::any_of(tokens.begin(), tokens.end(), masked)) {
    for (const auto& level : tokens) {
      masks.push_back(level.mask ? *level.mask : at::ones_like(level.indices, at::kBool));
    }
  }
  return masks;
}

Tensors member_of(const std::vector<CodebookState>& states, at::Tensor CodebookState::* member) {
  Tensors found;
  found.reserve(states.size());
  for (const auto& state : states) found.push_back(state.*member);
  return found;
}

std::vector<CodeStatistics> collect_own(const std::vector<StepTokens>& tokens,
                                        const Tensors& wide) {
  std::vector<CodeStatistics> found;
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto [counts, sums, exponents] = ops::code_statistics(
        tokens[i].x, tokens[i].indices, ops::code_exponents(wide[i]), tokens[i].mask);
    found.push_back({std::move(counts), std::move(sums), std::move(exponents)});
  }
  return found;
}

/// The results of a step's exchange between ranks.
struct Exchanged {
  std::vector<CodeStatistics> statistics;
  at::Tensor offered;   // candidates for dead codes, see distributed/synced_step_statistics.h
  Tensors rng = {};     // order the candidates. Default: the generators of the codebooks
  at::Tensor due = {};  // see distributed/kept_statistics.h
};

Tensors generators(const std::vector<CodebookState>& states, const Exchanged& exchanged) {
  return exchanged.rng.empty() ? member_of(states, &CodebookState::rng) : exchanged.rng;
}

/// Adds empty tokens for codebooks that are not in use.
std::vector<StepTokens> of_all_codebooks(const std::vector<CodebookState>& states,
                                         std::vector<StepTokens> tokens) {
  const auto like = tokens[0];
  while (tokens.size() < states.size()) tokens.push_back(no_tokens(like));
  return tokens;
}

/// Arguments of the exchange for the tokens of all codebooks.
struct Message {
  distributed::SyncedStatisticsOptions options;
  Tensors x, indices, exponents;
};

/// What a call does with the statistics. The ranks compare it, because those that used the same
/// statistics differently would have different codebooks from then on.
struct Use {
  size_t codebooks;  ///< that are in use; the others stay as they are
  std::optional<at::Tensor> weight = std::nullopt;
  bool learns = true;  ///< otherwise the caller gets them
};

std::string text_of(const Use& use, const LearnCodebooksOptions& options) {
  auto text = std::to_string(use.codebooks) + " codebooks in use, statistics ";
  if (!use.learns) return text + "handed out";
  text += options.ema_update() ? "move the codes" : "leave the codes";
  return use.weight ? text + " by a weight" : text;
}

Message message_of(const std::vector<CodebookState>& states, const std::vector<StepTokens>& all,
                   const Tensors& wide, const LearnCodebooksOptions& options, const Use& use) {
  Message message;
  auto& [synced, x, indices, exponents] = message;
  // Only what all messages need.  NOLINTNEXTLINE(cppcoreguidelines-slicing)
  static_cast<distributed::SyncOptions&>(synced) = options.ranks();
  synced.mask = masks_of(all);
  synced.rng = states[0].rng;
  synced.signature = text_of(use, options) + ", " + options.signature();
  synced.reduction = options.ranks().reduction;
  if (use.weight) synced.state.push_back(use.weight->to(states[0].cluster_size.options()));
  for (size_t i = 0; i < all.size(); ++i) {
    x.push_back(all[i].x);
    indices.push_back(all[i].indices);
    exponents.push_back(ops::code_exponents(wide[i]));
    for (const auto& tensor : {states[i].cluster_size, states[i].embed_avg})
      synced.state.push_back(tensor);
  }
  return message;
}

Exchanged exchanged_by(const distributed::SyncedStatistics& found, at::Tensor offered,
                       size_t count) {
  Exchanged exchanged{{}, std::move(offered)};
  for (size_t i = 0; i < count; ++i) {
    exchanged.statistics.push_back({found.counts[i], found.sums[i], found.exponents[i]});
  }
  return exchanged;
}

/// `offers`: what the replacement of dead codes may need; null if candidates are
/// not part of this message.
Exchanged exchange(const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
                   const Tensors& wide, const LearnCodebooksOptions& options, const Use& use,
                   const distributed::OfferOptions* offers) {
  const auto all = of_all_codebooks(states, tokens);
  const auto [synced, x, indices, exponents] = message_of(states, all, wide, options, use);
  auto [found, offered] =
      offers != nullptr
          ? distributed::synced_step_statistics(x, indices, exponents, synced, *offers)
          : distributed::StepStatistics{
                distributed::synced_code_statistics(x, indices, exponents, synced), {}};
  return exchanged_by(found, std::move(offered), tokens.size());
}

std::vector<CodeStatistics> collect(const std::vector<CodebookState>& states,
                                    const std::vector<StepTokens>& tokens, const Tensors& wide,
                                    const LearnCodebooksOptions& options) {
  if (options.ranks().alone()) return collect_own(tokens, wide);
  const Use use{.codebooks = tokens.size(), .learns = false};
  return exchange(states, tokens, wide, options, use, nullptr).statistics;
}

ops::EmaUpdateOptions average_options(const CodebookState& state,
                                      const LearnCodebooksOptions& options,
                                      const std::optional<at::Tensor>& weight) {
  const bool finish = options.ema_update() && !options.manual_ema_update();
  const bool compat = options.vqp_compat();
  return {.decay = options.decay(),
          .eps = options.eps(),
          .metric = options.metric(),
          .weight = weight ? std::optional(weight->to(state.cluster_size.options())) : std::nullopt,
          .from_codebook = options.by_gradient() && options.ema_update() && !compat,
          .finish = finish && !compat};
}

/// In the reference, unused codes are recomputed like all others, and so drift to the origin; but a
/// step without tokens, for example of a dropped level, changes nothing.
void finish_compatibly(const CodebookState& state, const at::Tensor& counts, const at::Tensor& wide,
                       const LearnCodebooksOptions& options) {
  if (!options.vqp_compat() || !options.ema_update() || options.manual_ema_update()) return;
  const auto before = wide.clone();
  ops::ema_finish_(wide, state.cluster_size, state.embed_avg,
                   {.decay = 1, .eps = options.eps(), .metric = options.metric()});
  wide.copy_(at::where(counts.sum().gt(0), wide, before));
}

ops::DeadCodeOptions dead_code_options(const LearnCodebooksOptions& options) {
  const bool compat = options.vqp_compat();
  return {.threshold = options.threshold(),
          .threshold_fraction = options.threshold_fraction(),
          .reset_cluster_size = options.reset_cluster_size(),
          .metric = options.metric(),
          // In the reference a code may be replaced in the same step that used it.
          .replace_used = compat,
          .most_per_token = compat ? std::nullopt : std::optional(kMostReplacedPerToken)};
}

at::Tensor replace_synced(const distributed::CodebookStates& state, const Tensors& x,
                          const std::vector<StepTokens>& tokens, const Tensors& counts,
                          const Tensors& rng, const LearnCodebooksOptions& options,
                          const ops::DeadCodeOptions& dead, const Exchanged& exchanged) {
  distributed::SyncedDeadCodeOptions synced;
  // Only what all messages need.  NOLINTNEXTLINE(cppcoreguidelines-slicing)
  static_cast<distributed::SyncOptions&>(synced) = options.ranks();
  synced.mask = masks_of(tokens);
  synced.dead = dead;
  if (exchanged.offered.defined()) synced.offered = exchanged.offered;
  if (exchanged.due.defined()) synced.due = exchanged.due;
  synced.reduction = options.ranks().reduction;
  return distributed::synced_replace_dead_codes_(state, x, counts, rng, synced);
}

/// Replaces dead codes by tokens.
void replace(const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
             const Tensors& wide, const Tensors& counts, const LearnCodebooksOptions& options,
             const ops::DeadCodeOptions& dead, const Exchanged& exchanged) {
  Tensors x;
  for (const auto& level : tokens) x.push_back(level.x);
  const auto embed_avg = member_of(states, &CodebookState::embed_avg);
  const auto cluster_size = member_of(states, &CodebookState::cluster_size);
  const auto rng = generators(states, exchanged);
  const auto replaced = options.ranks().alone()
                            ? ops::replace_dead_codes_(wide, embed_avg, cluster_size, x, counts,
                                                       rng, masks_of(tokens), dead)
                            : replace_synced({wide, embed_avg, cluster_size}, x, tokens, counts,
                                             rng, options, dead, exchanged);
  int64_t from = 0;
  Tensors own;
  for (const auto& state : states) {
    const int64_t heads = state.replaced.size(0);
    own.push_back(replaced.slice(0, from, from + heads));
    from += heads;
  }
  const auto replaced_by_codebook = member_of(states, &CodebookState::replaced);
  if (!at::functorch::functorchTLSAccessor()) {
    at::_foreach_add_(replaced_by_codebook, own);
    return;
  }
  // torch.vmap has no rule for lists of tensors.
  for (size_t i = 0; i < own.size(); ++i) replaced_by_codebook[i].add_(own[i]);
}

/// Completes a step after averages and codes have been updated. `counts` has an
/// entry for each of the tokens.
void finish(const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
            const Tensors& wide, const Tensors& counts, const LearnCodebooksOptions& options,
            const Exchanged& exchanged = {}) {
  for (size_t i = 0; i < tokens.size(); ++i)
    finish_compatibly(states[i], counts[i], wide[i], options);
  if (!options.replaces()) return;
  const auto used = static_cast<std::ptrdiff_t>(tokens.size());
  replace({states.begin(), states.begin() + used}, tokens, {wide.begin(), wide.begin() + used},
          counts, options, dead_code_options(options), exchanged);
}

/// Updates averages and codes from statistics; returns their counts.
Tensors learn_exchanged(const std::vector<CodebookState>& states,
                        const std::vector<StepTokens>& tokens, const Exchanged& exchanged,
                        const Tensors& wide, const LearnCodebooksOptions& options,
                        const std::optional<at::Tensor>& weight) {
  Tensors counts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& own = exchanged.statistics[i];
    ops::ema_update_(states[i].cluster_size, states[i].embed_avg, wide[i], own.counts, own.sums,
                     own.exponents, average_options(states[i], options, weight));
    counts.push_back(own.counts);
  }
  finish(states, tokens, wide, counts, options, exchanged);
  return counts;
}

/// The single message of a step: statistics, and candidates if dead codes are replaced.
Exchanged exchange_step(const std::vector<CodebookState>& states,
                        const std::vector<StepTokens>& tokens, const Tensors& wide,
                        const LearnCodebooksOptions& options,
                        const std::optional<at::Tensor>& weight) {
  const Use use{.codebooks = tokens.size(), .weight = weight};
  if (!options.replaces()) return exchange(states, tokens, wide, options, use, nullptr);
  const auto sizes = member_of(states, &CodebookState::cluster_size);
  const auto rng = member_of(states, &CodebookState::rng);
  const distributed::OfferOptions offers{sizes, rng, weight ? 0 : options.decay(),
                                         dead_code_options(options)};
  return exchange(states, tokens, wide, options, use, &offers);
}

/// The message of a step that is sent now and received later. `tokens` are already copies
/// of the caller's tensors.
distributed::StepMessage step_message(const std::vector<CodebookState>& states,
                                      const std::vector<StepTokens>& tokens, const Tensors& wide,
                                      const LearnCodebooksOptions& options,
                                      const std::optional<at::Tensor>& weight) {
  const auto all = of_all_codebooks(states, tokens);
  auto [synced, x, indices, exponents] =
      message_of(states, all, wide, options, {.codebooks = tokens.size(), .weight = weight});
  distributed::StepMessage message{std::move(x), std::move(indices), std::move(exponents),
                                   std::move(synced)};
  if (options.replaces()) {
    message.cluster_size = member_of(states, &CodebookState::cluster_size);
    message.rng = member_of(states, &CodebookState::rng);
    message.kept = weight ? 0 : options.decay();
    message.dead = dead_code_options(options);
  }
  return message;
}

/// Tokens with memory of their own.
std::vector<StepTokens> copies_of(const std::vector<StepTokens>& tokens) {
  std::vector<StepTokens> copies;
  for (const auto& [x, indices, mask] : tokens) {
    copies.push_back(
        {x.clone(), indices.clone(), mask ? std::optional(mask->clone()) : std::nullopt});
  }
  return copies;
}

/// A step of which the statistics are kept for later, or one that synchronises the kept ones. In
/// steps that only keep statistics, everything after this runs without tokens and changes nothing.
Tensors learn_kept(const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
                   const Tensors& wide, const LearnCodebooksOptions& options,
                   const std::optional<at::Tensor>& weight) {
  // Earlier steps may have used codebooks that this step does not use.
  const auto all = of_all_codebooks(states, tokens);
  const auto [synced, x, indices, exponents] =
      message_of(states, all, wide, options, {.codebooks = all.size(), .weight = weight});
  Tensors kept;
  Exchanged exchanged;
  for (const auto& state : states) {
    TORCH_CHECK_VALUE(state.kept.size() == distributed::kKeptTensors,
                      "learn_codebooks_: expected codebooks to keep statistics with sync_every ",
                      options.sync_every(), ", but got ", state.kept.size(), " tensors for them");
    kept.insert(kept.end(), state.kept.begin(), state.kept.end());
    // The same order of candidates for all kept steps.
    const auto& steps = state.kept[distributed::kKeptSteps];
    exchanged.rng.push_back(at::stack({state.rng[0], steps[distributed::kKeptReductions]}));
  }
  const auto sizes = member_of(states, &CodebookState::cluster_size);
  const distributed::OfferOptions offers{sizes, exchanged.rng, weight ? 0 : options.decay(),
                                         dead_code_options(options)};
  auto found = distributed::keep_statistics_(
      kept, x, indices, exponents, synced, offers,
      {.every = options.sync_every(), .replaces = options.replaces()});
  exchanged.offered = std::move(found.offered);
  exchanged.due = std::move(found.due);
  auto& [counts, sums, used] = found.statistics;
  std::vector<StepTokens> candidates;
  Tensors counted;
  for (size_t i = 0; i < all.size(); ++i) {
    exchanged.statistics.push_back({counts[i], sums[i], used[i]});
    candidates.push_back({found.candidates[i], {}, std::nullopt});
    if (i < tokens.size()) counted.push_back(at::ones_like(counts[i]));
  }
  learn_exchanged(states, candidates, exchanged, wide, options, weight);
  return counted;
}

/// A step of a single process, computed directly from the tokens.
Tensors learn_alone(const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
                    const Tensors& wide, const LearnCodebooksOptions& options,
                    const std::optional<at::Tensor>& weight) {
  Tensors sizes, averages, codes, x, indices;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sizes.push_back(states[i].cluster_size);
    averages.push_back(states[i].embed_avg);
    codes.push_back(wide[i]);
    x.push_back(tokens[i].x);
    indices.push_back(tokens[i].indices);
  }
  const auto counts = ops::ema_update_tokens_(sizes, averages, codes, x, indices, masks_of(tokens),
                                              average_options(states[0], options, weight));
  finish(states, tokens, wide, counts, options);
  return counts;
}

}  // namespace

at::Tensor wide_embed(const CodebookState& state, double eps, const std::string& metric) {
  const auto embed = state.embed.detach();
  if (embed.scalar_type() == state.embed_avg.scalar_type()) return embed;
  return wide_codes(embed, state.cluster_size, state.embed_avg, eps, metric);
}

std::vector<CodeStatistics> collect_statistics(const std::vector<CodebookState>& states,
                                               const std::vector<StepTokens>& tokens,
                                               const LearnCodebooksOptions& options) {
  check_tokens("collect_statistics", "tokens", tokens.size(), states);
  const at::NoGradGuard no_grad;
  return collect(states, tokens, WideCodes(states, options).codes(), options);
}

void learn_from_statistics_(const std::vector<CodebookState>& states,
                            const std::vector<StepTokens>& tokens,
                            const std::vector<CodeStatistics>& statistics,
                            const LearnCodebooksOptions& options,
                            const std::optional<at::Tensor>& weight) {
  check_learning(states, options, weight);
  check_tokens("learn_from_statistics_", "tokens", tokens.size(), states);
  TORCH_CHECK_VALUE(statistics.size() == tokens.size(),
                    "learn_from_statistics_: expected statistics of ", tokens.size(),
                    " codebooks (as many as tokens), but got ", statistics.size());
  const at::NoGradGuard no_grad;
  const WideCodes wide(states, options);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& [counts, sums, exponents] = statistics[i];
    detail::check_ema_update_(
        states[i].cluster_size, states[i].embed_avg, wide.codes()[i],
        {counts, sums, exponents, options.decay(), options.eps(), options.metric(), std::nullopt});
  }
  learn_exchanged(states, tokens, {statistics, {}}, wide.codes(), options, weight);
  wide.store(tokens.size());
}

std::vector<at::Tensor> learn_codebooks_(const std::vector<CodebookState>& states,
                                         const std::vector<StepTokens>& tokens,
                                         const LearnCodebooksOptions& options,
                                         const std::optional<at::Tensor>& weight) {
  if (!options.learns()) return {};
  check_learning(states, options, weight);
  check_tokens("learn_codebooks_", "tokens", tokens.size(), states);
  const at::NoGradGuard no_grad;
  const WideCodes wide(states, options);
  if (options.sync_every() != 1) {
    auto counts = learn_kept(states, tokens, wide.codes(), options, weight);
    wide.store(states.size());
    return counts;
  }
  const auto counts =
      options.ranks().alone()
          ? learn_alone(states, tokens, wide.codes(), options, weight)
          : learn_exchanged(states, tokens,
                            exchange_step(states, tokens, wide.codes(), options, weight),
                            wide.codes(), options, weight);
  wide.store(tokens.size());
  return counts;
}

struct LearningInFlight::Impl {
  std::vector<CodebookState> states;
  std::vector<StepTokens> tokens;
  LearnCodebooksOptions options;
  std::optional<at::Tensor> weight;
  distributed::StepInFlight message;
};

LearningInFlight::LearningInFlight(std::vector<CodebookState> states,
                                   const std::vector<StepTokens>& tokens,
                                   LearnCodebooksOptions options,
                                   const std::optional<at::Tensor>& weight) {
  check_learning(states, options, weight);
  check_tokens("learn_codebooks_", "tokens", tokens.size(), states);
  const at::NoGradGuard no_grad;
  const WideCodes wide(states, options);
  auto own = copies_of(tokens);
  auto message = step_message(states, own, wide.codes(), options, weight);
  // Members are initialised in this order, so the message is sent last; arguments of a function
  // have no order.  NOLINTNEXTLINE(modernize-make-unique)
  impl_.reset(new Impl{std::move(states), std::move(own), std::move(options),
                       weight ? std::optional(weight->clone()) : std::nullopt,
                       distributed::StepInFlight(std::move(message))});
}

LearningInFlight::~LearningInFlight() = default;

std::vector<at::Tensor> LearningInFlight::finish() {
  const at::NoGradGuard no_grad;
  auto& [states, tokens, options, weight, message] = *impl_;
  auto [found, offered] = message.receive();
  const WideCodes wide(states, options);
  const auto exchanged = exchanged_by(found, std::move(offered), tokens.size());
  const auto counts = learn_exchanged(states, tokens, exchanged, wide.codes(), options, weight);
  wide.store(tokens.size());
  for (size_t i = 0; i < counts.size(); ++i) ops::advance_rng_(states[i].rng, counts[i]);
  return counts;
}

void expire_codes_(const std::vector<CodebookState>& states, at::TensorList x,
                   const LearnCodebooksOptions& options) {
  if (!options.replaces()) return;
  check_learning(states, options);
  TORCH_CHECK_VALUE(x.size() == states.size(), "expire_codes_: expected x of ", states.size(),
                    " codebooks (as many as states), but got ", x.size());
  const at::NoGradGuard no_grad;
  const WideCodes wide(states, options);
  std::vector<StepTokens> tokens;
  Tensors unused;
  for (size_t i = 0; i < states.size(); ++i) {
    tokens.push_back({x[i], {}, std::nullopt});
    unused.push_back(at::zeros_like(states[i].cluster_size, at::kLong));
  }
  auto dead = dead_code_options(options);
  dead.most_per_token = std::nullopt;  // all at once
  replace(states, tokens, wide.codes(), unused, options, dead, {});
  wide.store(states.size());
}

}  // namespace torchvq::functional
