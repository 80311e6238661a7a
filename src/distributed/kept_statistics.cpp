#include "distributed/kept_statistics.h"

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/code_statistics.h>

#include "detail/checks.h"
#include "detail/exponents.h"
#include "detail/metric.h"
#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/row_keys.h"
#include "distributed/kept_reduction.h"
#include "distributed/synced_code_statistics.h"
#include "distributed/two_words.h"
#include "ops/capture.h"

namespace torchvq::distributed {
namespace {

constexpr auto kKeepStatistics = "keep_statistics_";

using Tensors = std::vector<at::Tensor>;
/// The offers of all ranks, and whether the kept steps are due.
using Offered = std::tuple<at::Tensor, at::Tensor>;
using KeepStatisticsSignature = Offered(at::TensorList kept, at::TensorList found, at::TensorList x,
                                        at::TensorList indices, at::TensorList exponents,
                                        at::TensorList mask, at::TensorList state,
                                        const at::Tensor& step, at::TensorList rng,
                                        at::TensorList cluster_size, int64_t every, bool replaces,
                                        double kept_size, double threshold,
                                        double threshold_fraction, std::string_view metric,
                                        std::string_view signature, std::string_view reduction,
                                        std::string_view group_name, std::string_view label);

void check_shape(const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 const std::vector<c10::SymInt>& sizes, const char* shape) {
  detail::check_dtype(kKeepStatistics, name, tensor, dtype);
  detail::check_rank(kKeepStatistics, name, tensor, static_cast<int64_t>(sizes.size()), shape);
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    detail::check_size(kKeepStatistics, name, tensor, static_cast<int64_t>(axis), sizes[axis],
                       shape);
  }
}

/// The accumulated and the written tensors of one codebook of H heads, K codes and D features.
void check_state(const KeepArguments& arguments, size_t c) {
  const auto heads = arguments.exponents[c].sym_size(0), codes = arguments.exponents[c].sym_size(1),
             dim = arguments.levels.x[c].sym_size(2);
  check_shape("kept steps", arguments.of(c, kKeptSteps), at::kLong, {4}, "(4,)");
  check_shape("kept counts", arguments.of(c, kKeptCounts), at::kLong, {heads, codes}, "(H, K)");
  check_shape("kept sums", arguments.of(c, kKeptSums), at::kLong, {2, heads, codes, dim},
              "(2, H, K, D)");
  check_shape("kept exponents", arguments.of(c, kKeptExponents), at::kInt, {2, heads, codes},
              "(2, H, K)");
  const auto& rows = arguments.of(c, kKeptCandidates);
  detail::check_floating(kKeepStatistics, "kept candidates", rows);
  detail::check_rank(kKeepStatistics, "kept candidates", rows, 3, "(H, C, 1 + D)");
  const auto candidates = rows.sym_size(1);
  check_shape("kept candidates", rows, rows.scalar_type(), {heads, candidates, dim + 1},
              "(H, C, 1 + D)");
  check_shape("found counts", arguments.out(c, kFoundCounts), at::kLong, {heads, codes}, "(H, K)");
  check_shape("found sums", arguments.out(c, kFoundSums), at::kLong, {2, heads, codes, dim},
              "(2, H, K, D)");
  check_shape("found exponents", arguments.out(c, kFoundExponents), at::kInt, {heads, codes},
              "(H, K)");
  check_shape("found candidates", arguments.out(c, kFoundCandidates), arguments.rows(c),
              {heads, candidates, dim}, "(H, C, D)");
  detail::check_rng(kKeepStatistics, arguments.rng[c]);
  check_shape("cluster_size", arguments.cluster_size[c], arguments.cluster_size[c].scalar_type(),
              {heads, codes}, "(H, K)");
}

bool check_kept(const KeepArguments& arguments, std::string_view metric) {
  const auto number = arguments.size();
  check_synced_code_statistics(arguments.levels.x, arguments.indices, arguments.exponents,
                               arguments.levels.mask, arguments.state, arguments.step,
                               arguments.reduction);
  for (const auto size :
       {arguments.rng.size(), arguments.cluster_size.size(), arguments.kept.size() / kKeptTensors,
        arguments.found.size() / kFoundTensors}) {
    TORCH_CHECK_VALUE(size == number, kKeepStatistics,
                      ": expected rng, cluster_size, kept and found for ", number,
                      " codebooks, but got ", size);
  }
  TORCH_CHECK_VALUE(arguments.every == 0 || arguments.every >= 2, kKeepStatistics,
                    ": expected every to be 0 or at least 2, but got ", arguments.every);
  for (size_t c = 0; c < number; ++c) check_state(arguments, c);
  return detail::is_cosine(kKeepStatistics, metric);
}

/// The state of the kept steps.
struct Place {
  int64_t steps;
  bool empty;
  bool mine;  ///< kept by this rank, and not by the rank whose checkpoint this rank has loaded
  bool due;
};

Place place_of(const KeepArguments& arguments, const Group& group) {
  const auto steps = arguments.of(0, kKeptSteps).cpu().contiguous();
  const auto* at = steps.const_data_ptr<int64_t>();
  return {.steps = at[kStepsKept],
          .empty = at[kCallsKept] == 0,
          .mine = group.alone() || at[kKeptBy] == group.rank(),
          .due = arguments.every > 0 && at[kStepsKept] + 1 >= arguments.every};
}

// This rank's part --------------------------------------------------------------------------------

/// Tokens (H, C, D) in the form in which they are kept, each after a 1; zeros for missing ones.
at::Tensor marked(const at::Tensor& candidates) {
  const auto present = candidates.isfinite().all(-1, /*keepdim=*/true);
  return at::cat(
      {present.to(candidates.scalar_type()), candidates.masked_fill(present.logical_not(), 0)}, -1);
}

/// The rows of `kept` and x that would be tried first; NaN for missing ones.
at::Tensor first_candidates(const KeepArguments& arguments, size_t c, const at::Tensor& kept) {
  const auto dtype = arguments.rows(c);
  const auto& x = arguments.levels.x[c];
  const int64_t count = kept.size(1);
  if (count == 0) return x.new_empty({kept.size(0), 0, x.size(2)}, x.options().dtype(dtype));
  // All as they are kept, so that the same tokens are chosen whichever of them were kept before.
  const auto rows = at::cat({kept.narrow(2, 1, x.size(2)), x.to(kept.scalar_type())}, 1).to(dtype);
  const auto mask = arguments.levels.mask_of(c);
  const auto shape = x.sizes().slice(0, 2);
  const auto token_mask =
      mask ? mask->expand(shape) : at::ones(shape, kept.options().dtype(at::kBool));
  const auto codes = detail::rows_as_codes(rows, arguments.unit);
  auto usable = detail::usable_rows(codes, at::cat({kept.select(2, 0).ne(0), token_mask}, 1));
  if (arguments.unit) usable = usable.logical_and(codes.ne(0).any(-1));
  const auto keys = detail::row_keys(codes, arguments.rng[c], RandomPurpose::kDeadCodeCandidates)
                        .masked_fill_(usable.logical_not(), detail::kNoKey);
  const auto [distinct, positions] = detail::sort_distinct(keys);
  const auto [best, order] = at::sort(distinct, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const auto first = positions.gather(1, order.narrow(1, 0, count)).unsqueeze(-1);
  const auto none = best.narrow(1, 0, count).eq(detail::kNoKey).unsqueeze(-1);
  return rows.gather(1, first.expand({-1, -1, rows.size(2)}))
      .masked_fill(none, std::numeric_limits<double>::quiet_NaN());
}

KeptSum add_tokens(const KeepArguments& arguments, size_t c, const Place& place) {
  KeptSum sum;
  const auto& kept = arguments.of(c, kKeptExponents);
  const bool anew = place.empty || !place.mine;
  sum.base =
      place.empty
          ? detail::clamp_exponents(arguments.exponents[c]).add(arguments.wide(c) ? 0 : kLowBits)
          : kept[0].clone();
  const auto at_least = anew ? sum.base : kept[1].maximum(sum.base);
  // Converted to float64, whose sums have two words.
  std::tie(sum.counts, sum.sums, sum.used) =
      ops::code_statistics(arguments.levels.x[c].to(at::kDouble), arguments.indices[c], at_least,
                           arguments.levels.mask_of(c));
  auto candidates = arguments.of(c, kKeptCandidates);
  if (anew) {
    candidates = at::zeros_like(candidates);
  } else {
    sum.counts.add_(arguments.of(c, kKeptCounts));
    sum.sums.add_(rescaled(arguments.of(c, kKeptSums), kept[1], sum.used));
  }
  // Normalizes the words, so that equal sums have equal words.
  auto [whole, rest] = words_of(sum.sums);
  sum.sums = at::stack({std::move(whole), std::move(rest)});
  sum.candidates = first_candidates(arguments, c, candidates);
  return sum;
}

// The operator ------------------------------------------------------------------------------------

void write_steps(const KeepArguments& arguments, size_t c, const Place& place, int64_t rank) {
  const auto& steps = arguments.of(c, kKeptSteps);
  if (place.due) {
    steps[kStepsKept].zero_();
    steps[kCallsKept].zero_();
  } else {
    steps[kStepsKept].fill_(place.steps + (arguments.every > 0 ? 1 : 0));
    steps[kCallsKept].add_(1);
  }
  steps[kKeptBy].fill_(rank);
}

at::TensorList candidates_found(const KeepArguments& arguments, Tensors& candidates) {
  for (size_t c = 0; c < arguments.size(); ++c) {
    candidates.push_back(arguments.out(c, kFoundCandidates));
  }
  return candidates;
}

/// Handles a step that is not due: keeps the statistics, and sets the outputs to zeros.
Offered wait_for_more(const KeepArguments& arguments, const Group& group, const Place& place,
                      const std::vector<KeptSum>& own) {
  for (size_t c = 0; c < own.size(); ++c) {
    arguments.of(c, kKeptCounts).copy_(own[c].counts);
    arguments.of(c, kKeptSums).copy_(own[c].sums);
    arguments.of(c, kKeptExponents).copy_(at::stack({own[c].base, own[c].used}));
    arguments.of(c, kKeptCandidates).copy_(marked(own[c].candidates));
    write_steps(arguments, c, place, group.rank());
    arguments.out(c, kFoundCounts).zero_();
    arguments.out(c, kFoundSums).zero_();
    arguments.out(c, kFoundExponents).copy_(own[c].used);
    arguments.out(c, kFoundCandidates).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  Tensors candidates;
  const auto offers = arguments.offers(candidates_found(arguments, candidates));
  const int64_t words = arguments.replaces ? words_of_offer(offers, group) : 0;
  return {arguments.rng[0].new_zeros({group.size(), words}),
          at::zeros({}, arguments.step.options().dtype(at::kBool))};
}

Offered hand_on(const KeepArguments& arguments, const Group& group, const Place& place,
                const std::vector<KeptSum>& own) {
  at::Tensor offered;
  const auto all = reduce_kept(group, arguments, own, offered);
  // No state has changed so far, and nothing below can fail. From here on only the caller has the
  // statistics, so it has checked its own arguments before.
  for (size_t c = 0; c < own.size(); ++c) {
    arguments.of(c, kKeptCounts).zero_();
    arguments.of(c, kKeptSums).zero_();
    arguments.of(c, kKeptCandidates).zero_();
    write_steps(arguments, c, place, group.rank());
    arguments.of(c, kKeptSteps)[kKeptReductions].add_(all.counts[c].gt(0).any());
    arguments.out(c, kFoundCounts).copy_(all.counts[c]);
    arguments.out(c, kFoundSums).copy_(all.sums[c]);
    arguments.out(c, kFoundExponents).copy_(all.exponents[c]);
    arguments.out(c, kFoundCandidates).copy_(own[c].candidates);
  }
  return {std::move(offered), at::ones({}, arguments.step.options().dtype(at::kBool))};
}

/// The Meta kernel: shapes only.
Offered empty_offer(const KeepArguments& arguments, const Group& group) {
  Tensors candidates;
  const auto offers = arguments.offers(candidates_found(arguments, candidates));
  const auto& step = arguments.step;
  return {arguments.rng[0].new_empty(
              {group.size(), arguments.replaces ? words_of_offer(offers, group) : 0}),
          step.new_empty({}, step.options().dtype(at::kBool))};
}

/// The kernel for all devices; with `meta`, the Meta kernel.
template <bool meta>
Offered keep_statistics(at::TensorList kept, at::TensorList found, at::TensorList x,
                        at::TensorList indices, at::TensorList exponents, at::TensorList mask,
                        at::TensorList state, const at::Tensor& step, at::TensorList rng,
                        at::TensorList cluster_size, int64_t every, bool replaces, double kept_size,
                        double threshold, double threshold_fraction, std::string_view metric,
                        std::string_view signature, std::string_view reduction,
                        std::string_view group_name, std::string_view label) {
  KeepArguments arguments{
      kept,  found,        {x, mask}, indices,  exponents, state,     step,
      rng,   cluster_size, every,     replaces, kept_size, threshold, threshold_fraction,
      false, signature,    reduction};
  arguments.unit = check_kept(arguments, metric);
  const Group group(group_name, {std::string(label), meta ? at::Tensor() : step});
  if constexpr (meta) {
    return empty_offer(arguments, group);
  } else {
    const auto place = place_of(arguments, group);
    std::vector<KeptSum> own;
    for (size_t c = 0; c < x.size(); ++c) own.push_back(add_tokens(arguments, c, place));
    return place.due ? hand_on(arguments, group, place, own)
                     : wait_for_more(arguments, group, place, own);
  }
}

}  // namespace

KeptStatistics keep_statistics_(at::TensorList kept, at::TensorList x, at::TensorList indices,
                                at::TensorList exponents, const SyncedStatisticsOptions& options,
                                const OfferOptions& offer, const KeptStatisticsOptions& keep) {
  static auto op = detail::op_handle<KeepStatisticsSignature>("torchvq::keep_statistics_");
  Tensors found;
  for (size_t c = 0; c < x.size(); ++c) {
    const auto* own = &kept[c * kKeptTensors];
    const auto& rows = own[kKeptCandidates];
    const auto dtype = x[c].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    found.push_back(at::empty_like(own[kKeptCounts]));
    found.push_back(at::empty_like(own[kKeptSums]));
    found.push_back(at::empty_like(exponents[c]));
    found.push_back(rows.new_empty_symint({rows.sym_size(0), rows.sym_size(1), x[c].sym_size(2)},
                                          rows.options().dtype(dtype)));
  }
  KeptStatistics statistics;
  std::tie(statistics.offered, statistics.due) =
      op.call(kept, found, x, indices, exponents, options.mask, options.state, options.rng,
              offer.rng, offer.cluster_size, keep.every, keep.replaces, offer.kept,
              offer.dead.threshold, offer.dead.threshold_fraction, offer.dead.metric,
              options.signature, options.reduction, options.group_name, options.label);
  for (size_t c = 0; c < x.size(); ++c) {
    auto* own = &found[c * kFoundTensors];
    statistics.statistics.counts.push_back(std::move(own[kFoundCounts]));
    statistics.statistics.sums.push_back(std::move(own[kFoundSums]));
    statistics.statistics.exponents.push_back(std::move(own[kFoundExponents]));
    statistics.candidates.push_back(std::move(own[kFoundCandidates]));
  }
  return statistics;
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "keep_statistics_(Tensor(a!)[] kept, Tensor(b!)[] found, Tensor[] x, Tensor[] indices, "
      "Tensor[] exponents, *, Tensor[] mask, Tensor[] state, Tensor step, Tensor[] rng, "
      "Tensor[] cluster_size, int every, bool replaces=False, float kept_size=0., "
      "float threshold=0., float threshold_fraction=0., str metric='euclidean', "
      "str signature='', str reduction='exact', str group_name='', str label='quantizer') "
      "-> (Tensor offered, Tensor due)",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("keep_statistics_", torchvq::distributed::keep_statistics<false>);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("keep_statistics_", torchvq::distributed::keep_statistics<true>);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("keep_statistics_",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
