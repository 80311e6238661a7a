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
  return {{arguments.x, arguments.mask}, arguments.indices};
}

/// Statistics of this rank's tokens.
SyncedStatistics local_statistics(const Tokens& tokens, at::TensorList exponents) {
  SyncedStatistics own;
  for (size_t level = 0; level < tokens.levels.size(); ++level) {
    auto [counts, sums, used] =
        ops::code_statistics(tokens.levels.x[level], tokens.indices[level], exponents[level],
                             tokens.levels.mask_of(level));
    own.counts.push_back(std::move(counts));
    own.sums.push_back(std::move(sums));
    own.exponents.push_back(std::move(used));
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
    text << (level == 0 ? " " : ", ") << exponents[level].size(0) << " x "
         << exponents[level].size(1) << " codes of " << x.size(2) << " (" << x.scalar_type() << ")";
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

StatisticsLists synced_code_statistics_any(at::TensorList x, at::TensorList indices,
                                           at::TensorList exponents, at::TensorList mask,
                                           at::TensorList state,
                                           const std::optional<at::Tensor>& rng_,
                                           std::string_view signature, std::string_view reduction,
                                           std::string_view group_name, std::string_view label) {
  check_synced_code_statistics(x, indices, exponents, mask, state, rng_, reduction);
  const auto rng = rng_.value_or(at::Tensor());
  auto nothing = at::empty({0}, x[0].options().dtype(at::kLong));
  return reduce_statistics(Group(group_name, {std::string(label), rng}),
                           {x, indices, exponents, mask, state, rng, signature, reduction},
                           nothing);
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
                                  at::Tensor& extra) {
  return StatisticsInFlight(group, arguments, extra).receive(extra);
}

StatisticsInFlight::StatisticsInFlight(const Group& group, StatisticsArguments arguments,
                                       at::Tensor extra)
    : group_(group), arguments_(std::move(arguments)), extra_(std::move(extra)) {
  const auto tokens = tokens_of(arguments_);
  const auto& exponents = arguments_.exponents;
  own_ = local_statistics(tokens, exponents);
  if (group.alone()) return;
  claim_ = make_claim(tokens, exponents, arguments_.state, arguments_.rng, arguments_.signature,
                      arguments_.reduction);
  hash_ = claim_.hash();
  news_ = grown_codes(own_, exponents);
  if (exact()) {
    message_ = send_exact(group_, hash_, news_, own_, extra_);
  } else {
    message_ = send_float(group_, hash_, news_, own_, extra_);
  }
}

StatisticsLists StatisticsInFlight::receive(at::Tensor& extra) {
  if (group_.alone()) {
    extra_ = extra_.unsqueeze(0);
  } else if (exact()) {
    receive_integers();
  } else {
    claim_.expect(group_, receive_float(group_, message_, arguments_.exponents, own_, extra_));
  }
  extra = std::move(extra_);
  return {std::move(own_.counts), std::move(own_.sums), std::move(own_.exponents)};
}

void StatisticsInFlight::receive_integers() {
  const auto verdict = receive_exact(group_, message_, own_, extra_);
  claim_.expect(group_, verdict);
  if (verdict.news == 0) return;
  const auto largest = largest_exponents(group_, own_);
  own_ = local_statistics(tokens_of(arguments_), largest);
  // `extra` does not depend on exponents and was already sent.
  auto nothing = hash_.new_empty({0});
  claim_.expect(group_, reduce_exact(group_, hash_, news_, own_, nothing));
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_code_statistics", torchvq::distributed::synced_code_statistics_any);
}
