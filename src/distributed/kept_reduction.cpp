#include "distributed/kept_reduction.h"

#include <sstream>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "distributed/claim.h"
#include "distributed/fingerprint.h"
#include "distributed/statistics_buffer.h"
#include "distributed/synced_code_statistics.h"
#include "distributed/two_words.h"

namespace torchvq::distributed {
namespace {

// Bound on the whole part of a sum that fits into one word together with its fraction.
constexpr int64_t kNarrow = int64_t{1} << 30;

Claim claim_of(const KeepArguments& arguments, const std::vector<KeptSum>& own) {
  std::ostringstream text;
  text << "statistics of " << arguments.every << " steps, " << own.size() << " codebooks of";
  auto replicated = arguments.state.vec();
  for (size_t c = 0; c < own.size(); ++c) {
    const auto sizes = own[c].sums.sizes();
    text << (c == 0 ? " " : ", ") << sizes[1] << " x " << sizes[2] << " codes of " << sizes[3]
         << " (" << arguments.levels.x[c].scalar_type() << ")";
    replicated.push_back(own[c].base);
    replicated.push_back(arguments.of(c, kKeptSteps).narrow(0, 0, kKeptBy));
  }
  text << ", reduction " << arguments.reduction << ", " << arguments.signature;
  replicated.push_back(arguments.step);
  return {text.str(), fingerprint(replicated, arguments.step.device()), arguments.step};
}

/// Sums as single words, if the sums over all ranks fit; `misfits` is increased by the number
/// of codes that do not fit.
at::Tensor narrowed_sums(const KeptSum& own, int64_t ranks, at::Tensor& misfits) {
  const auto [whole, rest] = words_of(own.sums);
  const auto fits = whole.abs().lt(kNarrow / ranks).all(-1).logical_and(own.used.eq(own.base));
  misfits.add_(fits.logical_not().sum());
  return whole.bitwise_left_shift(kLowBits).add(rest).unsqueeze(0);
}

SyncedStatistics reduce_kept_exact(const Group& group, const KeepArguments& arguments,
                                   const Claim& claim, const std::vector<KeptSum>& own,
                                   at::Tensor& offered) {
  const auto hash = claim.hash();
  auto news = hash.new_zeros({});
  SyncedStatistics sent;
  for (size_t c = 0; c < own.size(); ++c) {
    sent.counts.push_back(own[c].counts);
    sent.exponents.push_back(own[c].base);
    if (arguments.wide(c)) news.add_(own[c].used.ne(own[c].base).sum());
    sent.sums.push_back(arguments.wide(c) ? own[c].sums
                                          : narrowed_sums(own[c], group.size(), news));
  }
  const auto verdict = reduce_exact(group, hash, news, sent, offered);
  claim.expect(group, verdict);
  if (verdict.news == 0) {
    for (size_t c = 0; c < own.size(); ++c) {
      if (!arguments.wide(c)) sent.sums[c] = split_word(sent.sums[c][0]);
    }
    return sent;
  }
  for (size_t c = 0; c < own.size(); ++c) sent.exponents[c] = own[c].used;
  sent.exponents = largest_exponents(group, sent);
  for (size_t c = 0; c < own.size(); ++c) {
    sent.counts[c] = own[c].counts;
    sent.sums[c] = rescaled(own[c].sums, own[c].used, sent.exponents[c]);
  }
  // Candidates were already sent with the first message.
  auto nothing = hash.new_empty({0});
  claim.expect(group, reduce_exact(group, hash, news, sent, nothing));
  return sent;
}

SyncedStatistics reduce_kept_float(const Group& group, const KeepArguments& arguments,
                                   const Claim& claim, const std::vector<KeptSum>& own,
                                   at::Tensor& offered) {
  const auto hash = claim.hash();
  auto news = hash.new_zeros({});
  SyncedStatistics sent;
  std::vector<at::Tensor> exponents;
  for (size_t c = 0; c < own.size(); ++c) {
    const auto& [counts, sums, base, used, candidates] = own[c];
    sent.counts.push_back(counts);
    exponents.push_back(arguments.wide(c) ? base : base.sub(kLowBits));
    if (arguments.wide(c)) {
      sent.sums.push_back(sums);
      sent.exponents.push_back(used);
      continue;
    }
    // If both words together are too long, the whole part alone is precise enough.
    const auto words = words_of(sums);
    const auto fits = words.whole.abs().lt(kNarrow).all(-1);
    sent.sums.push_back(at::where(fits.unsqueeze(-1),
                                  words.whole.bitwise_left_shift(kLowBits).add(words.rest),
                                  words.whole)
                            .unsqueeze(0));
    sent.exponents.push_back(at::where(fits, used.sub(kLowBits), used));
  }
  claim.expect(group, reduce_float(group, hash, news, exponents, sent, offered));
  for (size_t c = 0; c < own.size(); ++c) {
    if (arguments.wide(c)) continue;
    sent.sums[c] = split_word(sent.sums[c][0]);
    sent.exponents[c] = sent.exponents[c].add(kLowBits);
  }
  return sent;
}

}  // namespace

SyncedStatistics reduce_kept(const Group& group, const KeepArguments& arguments,
                             const std::vector<KeptSum>& own, at::Tensor& offered) {
  if (group.alone()) {
    SyncedStatistics all;
    for (const auto& sum : own) {
      all.counts.push_back(sum.counts);
      all.sums.push_back(sum.sums);
      all.exponents.push_back(sum.used);
    }
    offered = arguments.rng[0].new_empty({1, 0});
    return all;
  }
  std::vector<at::Tensor> candidates;
  for (const auto& sum : own) candidates.push_back(sum.candidates);
  offered = arguments.replaces ? own_offer(arguments.offers(candidates), group)
                               : arguments.rng[0].new_empty({0});
  const auto claim = claim_of(arguments, own);
  return arguments.reduction == "exact" ? reduce_kept_exact(group, arguments, claim, own, offered)
                                        : reduce_kept_float(group, arguments, claim, own, offered);
}

}  // namespace torchvq::distributed
