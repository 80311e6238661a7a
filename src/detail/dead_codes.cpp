#include "detail/dead_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include "detail/codebook_average.h"
#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/random_tensor.h"
#include "detail/row_keys.h"
#include "kernels/dead_code_order.h"

namespace torchvq::detail {
namespace {

at::Tensor gather_rows(const at::Tensor& rows, const at::Tensor& positions) {
  return rows.gather(1, positions.unsqueeze(-1).expand({-1, -1, rows.size(2)}));
}

/// Which of `keys` (H, C) occur in `others` (H, K).
at::Tensor occurs(const at::Tensor& keys, const at::Tensor& others) {
  const auto sorted = std::get<0>(at::sort(others, /*dim=*/1));
  const auto at_least = at::searchsorted(sorted, keys.contiguous()).clamp_max(others.size(1) - 1);
  return sorted.gather(1, at_least).eq(keys);
}

/// Which of the candidates' distinct keys belong to no live code.
at::Tensor usable_keys(const DeadCodeState& state, const at::Tensor& dead,
                       const at::Tensor& distinct, const at::Tensor& rows, const at::Tensor& rng) {
  // The state is converted to the dtype of the candidates, because keys depend on the dtype.
  const auto of_live_codes =
      row_keys(state.embed.to(rows.scalar_type()), rng, RandomPurpose::kDeadCodeCandidates)
          .masked_fill_(dead, kNoKey);
  return distinct.ne(kNoKey).logical_and(occurs(distinct, of_live_codes).logical_not());
}

/// The first `count` (H, 1) of the dead codes (H, K) in a random order.
at::Tensor draw(const at::Tensor& dead, const at::Tensor& rng, const at::Tensor& count) {
  const auto places = at::arange(dead.numel(), rng.options()).view_as(dead);
  const auto key = random_key(rng, static_cast<int64_t>(RandomPurpose::kDeadCodeCandidates),
                              kernels::kDeadCodeStream);
  const auto numbers = uniform_from_bits(random_bits(key, places), 53)
                           .masked_fill(dead.logical_not(), kernels::kBehindDeadCodes);
  const auto order = at::argsort(numbers, /*stable=*/true, /*dim=*/1);
  const auto place = at::argsort(order, /*stable=*/true, /*dim=*/1);
  return dead.logical_and(place.lt(count));
}

}  // namespace

std::pair<at::Tensor, at::Tensor> select_candidates(const at::Tensor& x, const at::Tensor& rng,
                                                    int64_t count,
                                                    const std::optional<at::Tensor>& mask,
                                                    bool unit) {
  const auto rows = rows_as_codes(x, unit);
  const auto keys = candidate_keys(rows, rng, mask, unit);
  const auto [distinct, positions] = sort_distinct(keys);
  auto [best, order] = at::sort(distinct, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const int64_t found = std::min(count, x.size(1));
  auto chosen_keys = keys.new_full({x.size(0), count}, kNoKey);
  auto chosen_rows = rows.new_zeros({x.size(0), count, x.size(2)});
  chosen_keys.narrow(1, 0, found).copy_(best.narrow(1, 0, found));
  // Adding 0 turns -0 into +0: both have the same key, and the result must not
  // depend on which came first.
  const auto chosen = gather_rows(rows, positions.gather(1, order.narrow(1, 0, found))).add_(0);
  const auto none = chosen_keys.narrow(1, 0, found).eq(kNoKey).unsqueeze(-1);
  chosen_rows.narrow(1, 0, found).copy_(chosen.masked_fill_(none, 0));
  return {chosen_keys, chosen_rows};
}

DeadCodes find_dead_codes(const DeadCodeState& state, const at::Tensor& counts,
                          const DeadCodeArguments& arguments) {
  const auto sizes = state.cluster_size.to(at::kDouble);
  const auto mean = divided(order_free_totals(sizes), static_cast<double>(sizes.size(1)));
  auto limits = (mean * arguments.threshold_fraction).clamp_min(arguments.threshold);
  auto dead = state.cluster_size.lt(limits);
  if (!arguments.replace_used) dead = dead.logical_and(counts.eq(0));
  return {std::move(limits), std::move(dead)};
}

at::Tensor most_replaced(const at::Tensor& dead, const at::Tensor& counts,
                         const DeadCodeArguments& arguments) {
  const auto number = dead.sum(1);
  if (!arguments.most_per_token) return number;
  const auto most = (counts.sum(1).to(at::kDouble) * *arguments.most_per_token).ceil();
  return at::minimum(number, most.clamp(0, static_cast<double>(dead.size(1))).to(at::kLong));
}

at::Tensor enough_candidates(const DeadCodeState& state, const at::Tensor& dead,
                             const at::Tensor& most, const at::Tensor& keys, const at::Tensor& rows,
                             const at::Tensor& rng) {
  const auto distinct = sort_distinct(keys).first;
  return usable_keys(state, dead, distinct, rows, rng).sum(1).ge(most);
}

at::Tensor replace_codes(const DeadCodeState& state, const DeadCodes& codes, const at::Tensor& most,
                         const at::Tensor& keys, const at::Tensor& rows, const at::Tensor& rng,
                         const DeadCodeArguments& arguments) {
  const auto& [limits, dead] = codes;
  const auto [distinct, positions] = sort_distinct(keys);
  const auto usable = usable_keys(state, dead, distinct, rows, rng);
  const auto order =
      std::get<1>(at::sort(usable.to(at::kInt), /*stable=*/true, /*dim=*/1, /*descending=*/true));

  const auto taken = draw(dead, rng, at::minimum(usable.sum(1), most).unsqueeze(1));
  // The j-th taken code gets the j-th usable candidate.
  const auto slot = (taken.cumsum(1) - 1).clamp(0, keys.size(1) - 1);
  const auto candidates = narrowed(gather_rows(rows, positions.gather(1, order.gather(1, slot))),
                                   state.embed.scalar_type());

  const auto size =
      limits.clamp_min(arguments.reset_cluster_size).to(state.cluster_size.scalar_type());
  const auto fresh = taken.unsqueeze(-1);
  const double bound = largest(state.embed_avg.scalar_type());
  state.embed.copy_(at::where(fresh, candidates, state.embed));
  state.embed_avg.copy_(
      at::where(fresh, (candidates * size.unsqueeze(-1)).clamp(-bound, bound), state.embed_avg));
  state.cluster_size.copy_(at::where(taken, size, state.cluster_size));
  return taken.sum(1);
}

}  // namespace torchvq::detail
