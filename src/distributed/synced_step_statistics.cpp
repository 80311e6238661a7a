#include "distributed/synced_step_statistics.h"

#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <torchvq/ops/dead_code_candidates.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "distributed/levels.h"
#include "distributed/synced_code_statistics.h"
#include "ops/capture.h"
#include "ops/code_statistics.h"

namespace torchvq::distributed {
namespace {

constexpr auto kSyncedStepStatistics = "synced_step_statistics";
// Decayed sizes are rounded: a code this close to the limit may fall below it.
constexpr double kRounding = 0.999;

using StepLists = std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>,
                             std::vector<at::Tensor>, at::Tensor>;

using SyncedStepStatisticsSignature =
    StepLists(at::TensorList x, at::TensorList indices, at::TensorList exponents,
              at::TensorList mask, at::TensorList state, at::TensorList rng,
              at::TensorList cluster_size, double kept, double threshold, double threshold_fraction,
              std::string_view metric, std::string_view signature, std::string_view reduction,
              std::string_view group_name, std::string_view label);

void check_levels(at::TensorList x, at::TensorList rng, at::TensorList cluster_size) {
  for (const auto size : {rng.size(), cluster_size.size()}) {
    TORCH_CHECK_VALUE(size == x.size() && size > 0, kSyncedStepStatistics,
                      ": expected rng and cluster_size to hold ", x.size(),
                      " tensors each (levels of x, at least 1), but got ", size);
  }
  for (const auto& own : rng) detail::check_rng(kSyncedStepStatistics, own);
}

/// Whether a code of the codebook may die in this step: the same on all ranks, since their state is
/// the same. On a GPU the state is not read, because that would wait.
bool may_lose_a_code(const OfferArguments& arguments, size_t c) {
  const auto& sizes = arguments.cluster_size[c];
  // A limit that is a fraction of the mean is known only after the step.
  if (!sizes.is_cpu() || arguments.threshold_fraction > 0) return true;
  return sizes.mul(arguments.kept * kRounding).lt(arguments.threshold).any().item<bool>();
}

/// The kernel for all devices; with `meta`, the Meta kernel.
template <bool meta>
StepLists step_statistics(at::TensorList x, at::TensorList indices, at::TensorList exponents,
                          at::TensorList mask, at::TensorList state, at::TensorList rng,
                          at::TensorList cluster_size, double kept, double threshold,
                          double threshold_fraction, std::string_view metric,
                          std::string_view signature, std::string_view reduction,
                          std::string_view group_name, std::string_view label) {
  check_levels(x, rng, cluster_size);
  check_synced_code_statistics(x, indices, exponents, mask, state, rng[0], reduction);
  const OfferArguments arguments{x,
                                 exponents,
                                 mask,
                                 rng,
                                 cluster_size,
                                 kept,
                                 threshold,
                                 threshold_fraction,
                                 metric == "cosine",
                                 reduction == "exact"};
  const Group group(group_name, {std::string(label), meta ? at::Tensor() : rng[0]});
  if constexpr (meta) {
    auto [counts, sums, used] = empty_statistics(x, indices, exponents);
    return {std::move(counts), std::move(sums), std::move(used),
            rng[0].new_empty({group.size(), words_of_offer(arguments, group)})};
  } else {
    auto offered = group.alone() ? rng[0].new_empty({0}) : own_offer(arguments, group);
    auto [counts, sums, used] = reduce_statistics(
        group, {x, indices, exponents, mask, state, rng[0], signature, reduction}, offered);
    return {std::move(counts), std::move(sums), std::move(used), std::move(offered)};
  }
}

int64_t count_of(const OfferArguments& arguments, size_t c, const Group& group) {
  return offered_count(offer_shape(arguments.x[c], arguments.exponents[c]), group.size(),
                       arguments.exact);
}

}  // namespace

OfferShape offer_shape(const at::Tensor& x, const at::Tensor& codes_of_heads) {
  const auto whole = [](const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); };
  const auto dtype = x.scalar_type();
  return {whole(codes_of_heads.sym_size(0)), whole(codes_of_heads.sym_size(1)),
          whole(x.sym_size(2)), dtype == at::kDouble ? at::kDouble : at::kFloat,
          detail::sum_words(dtype)};
}

at::Tensor own_offer(const OfferArguments& arguments, const Group& group) {
  const Levels levels{arguments.x, arguments.mask};
  std::vector<at::Tensor> packed{arguments.exponents[0].new_empty({0}, at::kLong)};
  for (size_t c = 0; c < arguments.x.size(); ++c) {
    const auto& x = arguments.x[c];
    const int64_t count = count_of(arguments, c, group);
    if (count == 0) continue;
    Candidates own;
    if (may_lose_a_code(arguments, c)) {
      std::tie(own.keys, own.rows) = ops::dead_code_candidates(
          x, arguments.rng[c], count, levels.mask_of(c), arguments.unit ? "cosine" : "euclidean");
    } else {
      own = no_offer(offer_shape(x, arguments.exponents[c]), count, x.device());
    }
    packed.push_back(pack_offer(own));
  }
  return at::cat(packed);
}

int64_t words_of_offer(const OfferArguments& arguments, const Group& group) {
  int64_t words = 0;
  for (size_t c = 0; c < arguments.x.size() && !group.alone(); ++c) {
    const int64_t count = count_of(arguments, c, group);
    const auto shape = offer_shape(arguments.x[c], arguments.exponents[c]);
    if (count > 0) words += offered_words(shape, count);
  }
  return words;
}

StepStatistics synced_step_statistics(at::TensorList x, at::TensorList indices,
                                      at::TensorList exponents,
                                      const SyncedStatisticsOptions& options,
                                      const OfferOptions& offer) {
  static auto op =
      detail::op_handle<SyncedStepStatisticsSignature>("torchvq::synced_step_statistics");
  auto [counts, sums, used, offered] =
      op.call(x, indices, exponents, options.mask, options.state, offer.rng, offer.cluster_size,
              offer.kept, offer.dead.threshold, offer.dead.threshold_fraction, offer.dead.metric,
              options.signature, options.reduction, options.group_name, options.label);
  return {{std::move(counts), std::move(sums), std::move(used)}, std::move(offered)};
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "synced_step_statistics(Tensor[] x, Tensor[] indices, Tensor[] exponents, *, Tensor[] mask, "
      "Tensor[] state, Tensor[] rng, Tensor[] cluster_size, float kept=0., float threshold=0., "
      "float threshold_fraction=0., str metric='euclidean', str signature='', "
      "str reduction='exact', str group_name='', str label='quantizer') "
      "-> (Tensor[] counts, Tensor[] sums, Tensor[] exponents, Tensor offered)",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_step_statistics", torchvq::distributed::step_statistics<false>);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("synced_step_statistics", torchvq::distributed::step_statistics<true>);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("synced_step_statistics",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
