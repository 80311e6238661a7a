#include <torchvq/distributed/synced_replace_dead_codes_.h>

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/ops/dead_code_candidates.h>
#include <torchvq/ops/replace_with_candidates_.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "distributed/candidates.h"
#include "distributed/group.h"
#include "distributed/levels.h"
#include "distributed/synced_code_statistics.h"
#include "distributed/synced_step_statistics.h"
#include "ops/capture.h"
#include "ops/replace_dead_codes_.h"

namespace torchvq::distributed {
namespace {

constexpr auto kSyncedReplaceDeadCodes = "synced_replace_dead_codes_";

/// The tensor arguments of an operator call.
struct Arguments {
  CodebookStates states;
  Levels levels;
  at::TensorList counts;
  at::TensorList rng;
  detail::DeadCodeArguments dead;
  at::Tensor offered;          // (W, n), or undefined
  std::string_view reduction;  // how the offers were sent, which affects their number
  bool due = true;
};

detail::DeadCodeState state_of(const Arguments& arguments, size_t codebook) {
  const auto& states = arguments.states;
  return {states.embed[codebook], states.embed_avg[codebook], states.cluster_size[codebook]};
}

/// Returns whether the metric is cosine.
bool check_dead_code_arguments(const Arguments& arguments, std::string_view metric) {
  const auto& [embed, embed_avg, cluster_size] = arguments.states;
  detail::check_lists_of_codebooks(kSyncedReplaceDeadCodes, embed,
                                   {{"embed_avg", embed_avg},
                                    {"cluster_size", cluster_size},
                                    {"counts", arguments.counts},
                                    {"rng", arguments.rng}});
  check_levels(kSyncedReplaceDeadCodes, arguments.levels, embed.size());
  check_reduction(kSyncedReplaceDeadCodes, arguments.reduction);
  bool unit = false;
  for (size_t level = 0; level < arguments.levels.size(); ++level) {
    unit = detail::check_replace_dead_codes_(
        state_of(arguments, level), arguments.levels.x[level], arguments.counts[level],
        arguments.rng[level], arguments.levels.mask_of(level), arguments.dead, metric);
  }
  return unit;
}

/// The dead codes (H, K) of each codebook, from the replicated state.
std::vector<at::Tensor> find_dead_codes(const Arguments& arguments) {
  std::vector<at::Tensor> dead;
  for (size_t c = 0; c < arguments.states.embed.size(); ++c) {
    const auto state = state_of(arguments, c);
    dead.push_back(detail::find_dead_codes(state, arguments.counts[c], arguments.dead).dead);
  }
  return dead;
}

Candidates own_candidates(const Arguments& arguments, size_t codebook, bool unit) {
  auto [keys, rows] =
      ops::dead_code_candidates(arguments.levels.x[codebook], arguments.rng[codebook],
                                arguments.states.embed[codebook].size(1),
                                arguments.levels.mask_of(codebook), unit ? "cosine" : "euclidean");
  return {std::move(keys), std::move(rows)};
}

/// The candidates that were sent with the statistics, for each codebook;
/// undefined if there was no room.
struct Offered {
  std::vector<Candidates> candidates;
  std::vector<at::Tensor> sufficient;  // (), bool: they suffice for the codebook's dead codes
};

Offered unpack_offered(const Arguments& arguments, const std::vector<at::Tensor>& dead) {
  Offered found{std::vector<Candidates>(dead.size()), {}};
  const auto& words = arguments.offered;
  const bool any = words.defined() && words.size(1) > 0;
  int64_t begin = 0;
  for (size_t c = 0; c < dead.size(); ++c) {
    found.sufficient.push_back(at::zeros({}, dead[c].options()));
    if (!any) continue;
    const auto shape = offer_shape(arguments.levels.x[c], arguments.counts[c]);
    const auto count = offered_count(shape, words.size(0), arguments.reduction == "exact");
    if (count == 0) continue;
    const auto size = offered_words(shape, count);
    auto [candidates, complete] = unpack_offers(words.narrow(1, begin, size), shape, count);
    begin += size;
    const auto state = state_of(arguments, c);
    const auto most = detail::most_replaced(dead[c], arguments.counts[c], arguments.dead);
    found.sufficient[c] = detail::enough_candidates(state, dead[c], most, candidates.keys,
                                                    candidates.rows, arguments.rng[c])
                              .logical_or(complete)
                              .all();
    found.candidates[c] = std::move(candidates);
  }
  return found;
}

std::vector<bool> read_flags(const std::vector<at::Tensor>& flags) {
  const auto values = at::stack(flags).cpu();
  std::vector<bool> read;
  for (int64_t i = 0; i < values.size(0); ++i) read.push_back(values[i].item<bool>());
  return read;
}

/// The replacement of the dead codes of a step.
struct Repair {
  std::vector<size_t> chosen;          // codebooks with a dead code
  std::vector<Candidates> candidates;  // for each codebook; undefined if not yet known
};

/// The plan is the same on all ranks. The host must know whether a collective follows, so it waits
/// for the device once; a group of one rank avoids this by choosing all codebooks.
Repair plan_repair(const Group& group, const Arguments& arguments,
                   const std::vector<at::Tensor>& dead) {
  const size_t count = dead.size();
  const bool on_cpu = dead[0].is_cpu();
  Repair repair{{}, std::vector<Candidates>(count)};
  if (group.alone() && !on_cpu) {
    for (size_t c = 0; c < count; ++c) repair.chosen.push_back(c);
    return repair;
  }
  std::vector<at::Tensor> any_dead;
  for (const auto& own : dead) any_dead.push_back(own.any());
  std::vector<bool> flags;
  if (on_cpu) {
    // On CPU this check is cheap, and most steps have no dead code.
    flags = read_flags(any_dead);
    if (std::find(flags.begin(), flags.end(), true) == flags.end()) return repair;
  }
  auto offered = unpack_offered(arguments, dead);
  auto asked = on_cpu ? offered.sufficient : any_dead;
  if (!on_cpu) asked.insert(asked.end(), offered.sufficient.begin(), offered.sufficient.end());
  const auto answers = read_flags(asked);
  flags.insert(flags.end(), answers.begin(), answers.end());
  for (size_t c = 0; c < count; ++c) {
    if (flags[c]) repair.chosen.push_back(c);
    if (flags[count + c]) repair.candidates[c] = std::move(offered.candidates[c]);
  }
  return repair;
}

/// Fetches the candidates of all ranks for chosen codebooks whose offers do not suffice: a
/// collective, if there are any.
void complete_candidates(const Group& group, const Arguments& arguments, Repair& repair,
                         bool unit) {
  std::vector<size_t> missing;
  std::vector<Candidates> own;
  for (const auto c : repair.chosen) {
    if (repair.candidates[c].keys.defined()) continue;
    missing.push_back(c);
    own.push_back(own_candidates(arguments, c, unit));
  }
  if (missing.empty()) return;
  auto gathered = gather_candidates(group, own);
  for (size_t i = 0; i < missing.size(); ++i)
    repair.candidates[missing[i]] = std::move(gathered[i]);
}

/// Replaces the dead codes of the chosen codebooks; returns replaced codes per head.
at::Tensor replace_chosen(const Arguments& arguments, const Repair& repair) {
  const auto& rules = arguments.dead;
  const ops::DeadCodeOptions options = {.threshold = rules.threshold,
                                        .threshold_fraction = rules.threshold_fraction,
                                        .reset_cluster_size = rules.reset_cluster_size,
                                        .replace_used = rules.replace_used,
                                        .most_per_token = rules.most_per_token};
  const auto of_chosen = [&](at::TensorList all) {
    std::vector<at::Tensor> chosen;
    for (const auto c : repair.chosen) chosen.push_back(all[c]);
    return chosen;
  };
  std::vector<at::Tensor> keys, rows;
  for (const auto c : repair.chosen) {
    keys.push_back(repair.candidates[c].keys);
    rows.push_back(repair.candidates[c].rows);
  }
  const auto& [embed, embed_avg, cluster_size] = arguments.states;
  return ops::replace_with_candidates_(
      of_chosen(embed), of_chosen(embed_avg), of_chosen(cluster_size), keys, rows,
      of_chosen(arguments.counts), of_chosen(arguments.rng), options);
}

at::Tensor replace(const Group& group, const Arguments& arguments, bool unit) {
  const auto dead = find_dead_codes(arguments);
  Repair repair{{}, std::vector<Candidates>(dead.size())};
  if (arguments.due) repair = plan_repair(group, arguments, dead);
  complete_candidates(group, arguments, repair, unit);

  // No state has changed so far, and nothing below can fail.
  const bool any = !repair.chosen.empty();
  const auto replaced = any ? replace_chosen(arguments, repair) : at::Tensor();
  std::vector<at::Tensor> parts;
  int64_t from = 0;
  for (size_t c = 0; c < dead.size(); ++c) {
    const auto& counts = arguments.counts[c];
    const int64_t heads = counts.size(0);
    if (std::find(repair.chosen.begin(), repair.chosen.end(), c) == repair.chosen.end()) {
      parts.push_back(counts.new_zeros({heads}));
    } else {
      parts.push_back(replaced.narrow(0, from, heads));
      from += heads;
    }
  }
  return at::cat(parts);
}

// Kernels -----------------------------------------------------------------------------------------

using SyncedReplaceDeadCodesSignature =
    at::Tensor(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
               at::TensorList, at::TensorList, double, double, double, std::string_view,
               std::string_view, std::string_view, const std::optional<at::Tensor>&,
               std::string_view, const std::optional<at::Tensor>&, bool, std::optional<double>);

at::Tensor synced_replace_dead_codes_any(
    at::TensorList embed, at::TensorList embed_avg, at::TensorList cluster_size, at::TensorList x,
    at::TensorList counts, at::TensorList rng, at::TensorList mask, double threshold,
    double threshold_fraction, double reset_cluster_size, std::string_view metric,
    std::string_view group_name, std::string_view label, const std::optional<at::Tensor>& offered,
    std::string_view reduction, const std::optional<at::Tensor>& due, bool replace_used,
    std::optional<double> most_per_token) {
  const Arguments arguments{
      {embed, embed_avg, cluster_size},
      {x, mask},
      counts,
      rng,
      {threshold, threshold_fraction, reset_cluster_size, replace_used, most_per_token},
      offered.value_or(at::Tensor()),
      reduction,
      !due.has_value() || due->item<bool>()};
  const bool unit = check_dead_code_arguments(arguments, metric);
  return replace(Group(group_name, {std::string(label), rng[0]}), arguments, unit);
}

at::Tensor synced_replace_dead_codes_meta(
    at::TensorList embed, at::TensorList embed_avg, at::TensorList cluster_size, at::TensorList x,
    at::TensorList counts, at::TensorList rng, at::TensorList mask, double threshold,
    double threshold_fraction, double reset_cluster_size, std::string_view metric,
    std::string_view /*group_name*/, std::string_view /*label*/,
    const std::optional<at::Tensor>& /*offered*/, std::string_view reduction,
    const std::optional<at::Tensor>& /*due*/, bool replace_used,
    std::optional<double> most_per_token) {
  check_dead_code_arguments(
      {{embed, embed_avg, cluster_size},
       {x, mask},
       counts,
       rng,
       {threshold, threshold_fraction, reset_cluster_size, replace_used, most_per_token},
       {},
       reduction},
      metric);
  c10::SymInt heads = 0;
  for (const auto& one : embed) heads = heads + one.sym_size(0);
  return counts[0].new_empty_symint({heads});
}

}  // namespace

at::Tensor synced_replace_dead_codes_(const CodebookStates& states, at::TensorList x,
                                      at::TensorList counts, at::TensorList rng,
                                      const SyncedDeadCodeOptions& options) {
  static auto op =
      detail::op_handle<SyncedReplaceDeadCodesSignature>("torchvq::synced_replace_dead_codes_");
  const auto& dead = options.dead;
  return op.call(states.embed, states.embed_avg, states.cluster_size, x, counts, rng, options.mask,
                 dead.threshold, dead.threshold_fraction, dead.reset_cluster_size, dead.metric,
                 options.group_name, options.label, options.offered, options.reduction, options.due,
                 dead.replace_used, dead.most_per_token);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "synced_replace_dead_codes_(Tensor(a!)[] embed, Tensor(b!)[] embed_avg, Tensor(c!)[] "
      "cluster_size, Tensor[] x, Tensor[] counts, Tensor[] rng, *, Tensor[] mask, "
      "float threshold, float threshold_fraction=0, float reset_cluster_size, "
      "str metric=\"euclidean\", str group_name=\"\", str label=\"quantizer\", "
      "Tensor? offered=None, str reduction=\"exact\", Tensor? due=None, bool replace_used=False, "
      "float? most_per_token=None) -> Tensor replaced",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_replace_dead_codes_", torchvq::distributed::synced_replace_dead_codes_any);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("synced_replace_dead_codes_", torchvq::distributed::synced_replace_dead_codes_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("synced_replace_dead_codes_",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
