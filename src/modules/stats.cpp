#include "modules/stats.h"

#include <ATen/ops/zeros_like.h>

#include <torchvq/distributed/synced_usage.h>

#include "modules/ranks.h"

namespace torchvq::detail {
namespace {

using distributed::UsageColumn;

/// A counter, moved to the current device of the state `like`; zeros of its shape before the first step.
at::Tensor counter(const at::Tensor& kept, const at::Tensor& like) {
  return kept.defined() ? kept.to(like.device()) : at::zeros_like(like, at::kLong);
}

CodebookStats row_of(const double* row) {
  return {.usage = row[UsageColumn::kUsage],
          .perplexity = row[UsageColumn::kPerplexity],
          .dead = static_cast<int64_t>(row[UsageColumn::kDead]),
          .replaced = static_cast<int64_t>(row[UsageColumn::kReplaced]),
          .entropy_bits = row[UsageColumn::kEntropyBits],
          .tokens = static_cast<int64_t>(row[UsageColumn::kTokens])};
}

}  // namespace

void reset_replaced(const std::vector<Codebook>& codebooks) {
  for (const auto& codebook : codebooks) {
    codebook.ptr()->reset_replaced();
  }
}

std::vector<CodebookStats> stats_of(const std::vector<at::Tensor>& counts,
                                    const std::vector<const CodebookImpl*>& codebooks,
                                    const std::string& group) {
  std::vector<at::Tensor> uses, cluster_size, replaced;
  distributed::UsageOptions options;
  for (size_t index = 0; index < codebooks.size(); ++index) {
    const auto& state = *codebooks[index];
    uses.push_back(counter(counts[index], state.cluster_size));
    // Codes that were given without averages, in another number, do not follow any: none is dead.
    const bool follow = state.cluster_size.sizes() == uses.back().sizes();
    cluster_size.push_back(follow ? state.cluster_size
                                  : state.cluster_size.new_ones(uses.back().sizes()));
    replaced.push_back(counter(state.replaced, state.cluster_size.select(1, 0)));
    options.threshold.push_back(follow ? state.options.threshold_ema_dead_code() : 0);
    options.threshold_fraction.push_back(follow ? state.options.dead_code_threshold_fraction() : 0);
  }
  options.group_name = group;
  options.label = "stats";
  const auto table = distributed::synced_usage(uses, cluster_size, replaced, options).to(at::kCPU);
  std::vector<CodebookStats> stats;
  for (int64_t level = 0; level < table.size(0); ++level) {
    stats.push_back(row_of(table.select(0, level).const_data_ptr<double>()));
  }
  return stats;
}

std::vector<CodebookStats> read_stats(const std::vector<const VectorQuantizeImpl*>& levels,
                                      bool synced) {
  std::vector<at::Tensor> counts;
  std::vector<const CodebookImpl*> codebooks;
  for (const auto* level : levels) {
    counts.push_back(level->step_counts);
    codebooks.push_back(level->codebook_state.get());
  }
  return stats_of(counts, codebooks, synced ? group_of(*levels[0]) : "");
}

}  // namespace torchvq::detail
