// Any device, CPU included: local sums come from code_statistics, which has kernels of its own.
#include <sstream>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <torchvq/ops/code_statistics.h>

#include "detail/exponents.h"
#include "distributed/claim.h"
#include "distributed/fingerprint.h"
#include "distributed/levels.h"
#include "distributed/statistics_buffer.h"
#include "distributed/synced_code_statistics.h"

namespace torchvq::distributed {
namespace {

struct Tokens {
  Levels levels;
  at::TensorList indices;
};

Tokens tokens_of(const StatisticsArguments& arguments) {
  return {{arguments.x, arguments.mask, arguments.codebooks}, arguments.indices};
}

/// Statistics of this rank's tokens, summed over levels of the same codebook. Their exponents are
/// the maximum over the levels; sums of levels with different exponents are meaningless, which
/// grown_codes() > 0 reveals.
SyncedStatistics local_statistics(const Tokens& tokens, at::TensorList exponents) {
  const auto number = exponents.size();
  SyncedStatistics own{std::vector<at::Tensor>(number), std::vector<at::Tensor>(number),
                       std::vector<at::Tensor>(number)};
  for (size_t level = 0; level < tokens.levels.size(); ++level) {
    const auto c = tokens.levels.codebook(level);
    auto [counts, sums, used] = ops::code_statistics(tokens.levels.x[level], tokens.indices[level],
                                                     exponents[c], tokens.levels.mask_of(level));
    const bool first = !own.counts[c].defined();
    own.counts[c] = first ? counts : own.counts[c].add_(counts);
    own.sums[c] = first ? sums : own.sums[c].add_(sums);
    own.exponents[c] = first ? used : own.exponents[c].maximum(used);
  }
  return own;
}

/// Number of codes whose tokens outgrew the replicated exponents; int64 scalar.
at::Tensor grown_codes(const SyncedStatistics& own, at::TensorList exponents) {
  auto grown = own.counts[0].new_zeros({});
  for (size_t c = 0; c < own.exponents.size(); ++c) {
    grown.add_(own.exponents[c].gt(detail::clamp_exponents(exponents[c])).sum());
  }
  return grown;
}

std::string full_signature(const Tokens& tokens, at::TensorList exponents,
                           std::string_view signature, std::string_view reduction) {
  std::ostringstream text;
  text << "statistics of " << tokens.levels.size() << " levels of";
  for (size_t level = 0; level < tokens.levels.size(); ++level) {
    const auto& x = tokens.levels.x[level];
    const auto c = tokens.levels.codebook(level);
    text << (level == 0 ? " " : ", ") << exponents[c].size(0) << " x " << exponents[c].size(1)
         << " codes of " << x.size(2) << " (codebook " << c << ", " << x.scalar_type() << ")";
  }
  text << ", reduction " << reduction << ", " << signature;
  return text.str();
}

Claim make_claim(const Tokens& tokens, at::TensorList exponents, at::TensorList state,
                 const at::Tensor& rng, std::string_view signature, std::string_view reduction) {
  auto replicated = state.vec();
  replicated.insert(replicated.end(), exponents.begin(), exponents.end());
  if (rng.defined()) replicated.push_back(rng);
  return {full_signature(tokens, exponents, signature, reduction),
          fingerprint(replicated, exponents[0].device()), rng};
}

/// A single process reduces nothing, but levels that share a codebook must agree on exponents.
SyncedStatistics agree_locally(const Tokens& tokens, at::TensorList exponents,
                               SyncedStatistics own) {
  if (!tokens.levels.shared(exponents.size())) return own;
  // On other devices, reading the count would wait; summing again gives the
  // same result if nothing grew.
  if (own.counts[0].is_cpu() && grown_codes(own, exponents).item<int64_t>() == 0) return own;
  return local_statistics(tokens, own.exponents);
}

StatisticsLists synced_code_statistics_any(at::TensorList x, at::TensorList indices,
                                           at::TensorList exponents, at::TensorList mask,
                                           at::IntArrayRef codebooks, at::TensorList state,
                                           const std::optional<at::Tensor>& rng_,
                                           std::string_view signature, std::string_view reduction,
                                           std::string_view group_name, std::string_view label) {
  check_synced_code_statistics(x, indices, exponents, mask, codebooks, state, rng_, reduction);
  const auto rng = rng_.value_or(at::Tensor());
  auto nothing = at::empty({0}, x[0].options().dtype(at::kLong));
  return reduce_statistics(
      Group(group_name, {std::string(label), rng}),
      {x, indices, exponents, mask, codebooks, state, rng, signature, reduction}, nothing);
}

}  // namespace

std::vector<at::Tensor> largest_exponents(const Group& group, const SyncedStatistics& own) {
  std::vector<at::Tensor> flat;
  for (const auto& exponents : own.exponents) flat.push_back(exponents.reshape({-1}));
  const auto packed = at::cat(flat);
  group.max_(packed, "the exponents of tokens that outgrew the codebook");
  std::vector<at::Tensor> largest;
  int64_t begin = 0;
  for (const auto& exponents : own.exponents) {
    largest.push_back(packed.narrow(0, begin, exponents.numel()).view(exponents.sizes()).clone());
    begin += exponents.numel();
  }
  return largest;
}

StatisticsLists reduce_statistics(const Group& group, const StatisticsArguments& arguments,
                                  at::Tensor& passed) {
  return StatisticsInFlight(group, arguments, passed).receive(passed);
}

StatisticsInFlight::StatisticsInFlight(const Group& group, const StatisticsArguments& arguments,
                                       at::Tensor passed)
    : group_(group), arguments_(arguments), passed_(std::move(passed)) {
  const auto tokens = tokens_of(arguments_);
  const auto& exponents = arguments_.exponents;
  own_ = local_statistics(tokens, exponents);
  if (group.alone()) {
    own_ = agree_locally(tokens, exponents, std::move(own_));
    return;
  }
  claim_ = make_claim(tokens, exponents, arguments_.state, arguments_.rng, arguments_.signature,
                      arguments_.reduction);
  hash_ = claim_.hash();
  news_ = grown_codes(own_, exponents);
  if (exact()) {
    message_ = send_exact(group_, hash_, news_, own_, passed_);
  } else {
    own_ = agree_locally(tokens, exponents, std::move(own_));
    message_ = send_float(group_, hash_, news_, own_, passed_);
  }
}

StatisticsLists StatisticsInFlight::receive(at::Tensor& passed) {
  if (group_.alone()) {
    passed_ = passed_.unsqueeze(0);
  } else if (exact()) {
    receive_integers();
  } else {
    claim_.expect(group_, receive_float(group_, message_, arguments_.exponents, own_, passed_));
  }
  passed = std::move(passed_);
  return {std::move(own_.counts), std::move(own_.sums), std::move(own_.exponents)};
}

void StatisticsInFlight::receive_integers() {
  const auto verdict = receive_exact(group_, message_, own_, passed_);
  claim_.expect(group_, verdict);
  if (verdict.news == 0) return;
  const auto largest = largest_exponents(group_, own_);
  own_ = local_statistics(tokens_of(arguments_), largest);
  // `passed` does not depend on exponents and was already sent.
  auto nothing = hash_.new_empty({0});
  claim_.expect(group_, reduce_exact(group_, hash_, news_, own_, nothing));
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_code_statistics", torchvq::distributed::synced_code_statistics_any);
}
