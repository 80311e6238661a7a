#include <torchvq/distributed/synced_usage.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "distributed/group.h"
#include "ops/capture.h"

namespace torchvq::distributed {
namespace {

constexpr auto kSyncedUsage = "synced_usage";
/// Without replacement, codes with fewer tokens a step than this count as dead.
constexpr double kIdle = 1e-2;

void check_usage(at::TensorList counts, at::TensorList cluster_size, at::TensorList replaced,
                 at::ArrayRef<double> threshold, at::ArrayRef<double> fraction) {
  for (const auto size :
       {cluster_size.size(), replaced.size(), threshold.size(), fraction.size()}) {
    TORCH_CHECK_VALUE(
        size == counts.size() && size > 0, kSyncedUsage,
        ": expected counts, cluster_size, replaced, threshold and threshold_fraction to have one "
        "entry per level each, but got ",
        counts.size(), ", ", cluster_size.size(), ", ", replaced.size(), ", ", threshold.size(),
        " and ", fraction.size());
  }
  for (size_t level = 0; level < counts.size(); ++level) {
    detail::check_dtype(kSyncedUsage, "counts", counts[level], at::kLong);
    detail::check_dtype(kSyncedUsage, "replaced", replaced[level], at::kLong);
    detail::check_floating(kSyncedUsage, "cluster_size", cluster_size[level]);
    detail::check_rank(kSyncedUsage, "counts", counts[level], 2, "(H, K)");
    detail::check_rank(kSyncedUsage, "cluster_size", cluster_size[level], 2, "(H, K)");
    for (int64_t axis = 0; axis < 2; ++axis) {
      detail::check_size(kSyncedUsage, "cluster_size", cluster_size[level], axis,
                         counts[level].sym_size(axis), "as counts");
    }
  }
}

at::Tensor flat(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}).to(dtype));
  return at::cat(parts);
}

/// Throws unless all ranks send as many counts. A rank that does not ask for its statistics may be
/// in a training step: Gloo reports an all-gather that meets the all-reduce of the step, but ends
/// the process where two all-reduces differ in size.
void check_sizes(const Group& group, const at::Tensor& counts) {
  const auto own = at::full({1}, counts.numel(), counts.options());
  const auto all = group.all_gather(own, "the number of its codes").cpu().flatten();
  if (all.eq(counts.numel()).all().item<bool>()) return;
  C10_THROW_ERROR(
      DistError,
      group.subject() + ": expected the number of codes to be equal on all ranks, but got " +
          c10::Join(", ", std::vector<int64_t>(all.const_data_ptr<int64_t>(),
                                               all.const_data_ptr<int64_t>() + all.numel())));
}

/// A view of one level in the flat arrays.
struct LevelView {
  const int64_t* counts;
  const double* sizes;
  int64_t heads, codes;

  /// Adds to the columns of use.
  void measure_use(double* row) const {
    for (int64_t h = 0; h < heads; ++h) {
      const auto* count = counts + h * codes;
      int64_t total = 0;
      for (int64_t k = 0; k < codes; ++k) total += count[k];
      double entropy = 0;
      for (int64_t k = 0; k < codes; ++k) {
        if (count[k] == 0) continue;
        const double p = static_cast<double>(count[k]) / static_cast<double>(total);
        entropy -= p * std::log2(p);
        row[kUsage] += 1;
      }
      row[kEntropyBits] += std::abs(entropy);  // a single code gives -0
      row[kTokens] += static_cast<double>(total);
    }
    row[kUsage] /= static_cast<double>(std::max<int64_t>(heads * codes, 1));
    row[kEntropyBits] /= static_cast<double>(std::max<int64_t>(heads, 1));
    row[kPerplexity] = row[kTokens] > 0 ? std::exp2(row[kEntropyBits]) : 0;
  }

  [[nodiscard]] double dead(double threshold, double fraction) const {
    int64_t below = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const auto* size = sizes + h * codes;
      double total = 0;
      for (int64_t k = 0; k < codes; ++k) total += size[k];
      const bool replaces = threshold > 0 || fraction > 0;
      const double limit =
          replaces ? std::max(threshold, fraction * total / static_cast<double>(codes)) : kIdle;
      below += std::count_if(size, size + codes, [&](double s) { return s < limit; });
    }
    return static_cast<double>(below);
  }
};

at::Tensor synced_usage_any(at::TensorList counts, at::TensorList cluster_size,
                            at::TensorList replaced, at::ArrayRef<double> threshold,
                            at::ArrayRef<double> fraction, std::string_view group_name,
                            std::string_view label) {
  check_usage(counts, cluster_size, replaced, threshold, fraction);
  const Group group(group_name, {std::string(label), {}});
  auto tokens = flat(counts, at::kLong);
  check_sizes(group, tokens);
  group.sum_(tokens, "the use of its codes");
  tokens = tokens.cpu();
  const auto sizes = flat(cluster_size, at::kDouble).cpu();
  const auto levels = static_cast<int64_t>(counts.size());
  auto table = at::zeros({levels, kUsageColumns}, at::kDouble);
  int64_t from = 0;
  for (int64_t level = 0; level < levels; ++level) {
    const auto l = static_cast<size_t>(level);
    const LevelView view{tokens.const_data_ptr<int64_t>() + from,
                         sizes.const_data_ptr<double>() + from, counts[l].size(0),
                         counts[l].size(1)};
    auto* row = table.mutable_data_ptr<double>() + level * kUsageColumns;
    view.measure_use(row);
    row[kDead] = view.dead(threshold[l], fraction[l]);
    row[kReplaced] = static_cast<double>(replaced[l].sum().item<int64_t>());
    from += counts[l].numel();
  }
  return table.to(counts[0].device());
}

at::Tensor synced_usage_meta(at::TensorList counts, at::TensorList cluster_size,
                             at::TensorList replaced, at::ArrayRef<double> threshold,
                             at::ArrayRef<double> fraction, std::string_view /*group_name*/,
                             std::string_view /*label*/) {
  check_usage(counts, cluster_size, replaced, threshold, fraction);
  return counts[0].new_empty({static_cast<int64_t>(counts.size()), kUsageColumns},
                             counts[0].options().dtype(at::kDouble));
}

using SyncedUsageSignature = at::Tensor(at::TensorList, at::TensorList, at::TensorList,
                                        at::ArrayRef<double>, at::ArrayRef<double>,
                                        std::string_view, std::string_view);

}  // namespace

at::Tensor synced_usage(at::TensorList counts, at::TensorList cluster_size, at::TensorList replaced,
                        const UsageOptions& options) {
  static auto op = detail::op_handle<SyncedUsageSignature>("torchvq::synced_usage");
  return op.call(counts, cluster_size, replaced, options.threshold, options.threshold_fraction,
                 options.group_name, options.label);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "synced_usage(Tensor[] counts, Tensor[] cluster_size, Tensor[] replaced, *, float[] "
      "threshold, float[] threshold_fraction, str group_name=\"\", str label=\"quantizer\") -> "
      "Tensor",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_usage", torchvq::distributed::synced_usage_any);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("synced_usage", torchvq::distributed::synced_usage_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("synced_usage",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
