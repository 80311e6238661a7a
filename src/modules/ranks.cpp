#include "modules/ranks.h"

#include <algorithm>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>

#include <torchvq/distributed/replicas.h>
#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/distributed/synced_replace_dead_codes_.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/replace_dead_codes_.h>

#include "distributed/group.h"

namespace torchvq::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Statistics = CodebookImpl::Statistics;

// A prime below 2^40: seeds of levels, which are consecutive, stay apart.
constexpr int64_t kSeedsApart = 1099511627689;

void append(std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::string signature_of(const std::vector<Tokens>& levels) {
  std::string text;
  for (const auto& level : levels) {
    text += (text.empty() ? "" : "; ") + level.codebook->signature();
  }
  return text;
}

/// One mask per level, or none at all.
std::vector<at::Tensor> masks_of(const std::vector<Tokens>& levels) {
  const auto masked = [](const Tokens& level) { return level.mask.has_value(); };
  std::vector<at::Tensor> masks;
  if (std::any_of(levels.begin(), levels.end(), masked)) {
    for (const auto& level : levels) {
      masks.push_back(level.mask ? *level.mask : at::ones_like(level.indices, at::kBool));
    }
  }
  return masks;
}

std::vector<Statistics> collect_synced(const std::vector<Tokens>& levels, const Ranks& ranks) {
  distributed::SyncedStatisticsOptions options;
  static_cast<distributed::SyncOptions&>(options) = ranks;
  options.mask = masks_of(levels);
  options.rng = levels[0].codebook->rng;
  options.signature = signature_of(levels);
  options.reduction = ranks.reduction;
  std::vector<at::Tensor> x, indices, exponents;
  for (const auto& level : levels) {
    x.push_back(level.x);
    indices.push_back(level.indices);
    exponents.push_back(level.codebook->exponents());
    append(options.state, level.codebook->compared_state());
  }
  const auto found = distributed::synced_code_statistics(x, indices, exponents, options);
  std::vector<Statistics> statistics;
  for (size_t i = 0; i < levels.size(); ++i) {
    statistics.emplace_back(found.counts[i], found.sums[i], found.exponents[i]);
  }
  return statistics;
}

ops::DeadCodeOptions dead_code_options(const CodebookImpl& codebook) {
  return {.threshold = codebook.options.threshold_ema_dead_code(),
          .threshold_fraction = codebook.options.dead_code_threshold_fraction(),
          .reset_cluster_size = codebook.options.threshold_ema_dead_code(),
          .cooldown_steps = codebook.cooldown_steps(),
          .metric = codebook.metric()};
}

/// Adds to what the step has replaced; a new tensor, so that a copy of the module keeps its own.
void add_replaced(CodebookImpl& codebook, const at::Tensor& replaced) {
  codebook.replaced = codebook.replaced.defined() ? codebook.replaced.add(replaced) : replaced;
}

void replace_synced(const std::vector<Tokens>& levels, const std::vector<at::Tensor>& embed,
                    const std::vector<at::Tensor>& counts, const Ranks& ranks) {
  distributed::SyncedDeadCodeOptions options;
  static_cast<distributed::SyncOptions&>(options) = ranks;
  options.mask = masks_of(levels);
  options.dead = dead_code_options(*levels[0].codebook);
  std::vector<at::Tensor> embed_avg, cluster_size, cooldown, x, rng;
  for (const auto& level : levels) {
    embed_avg.push_back(level.codebook->embed_avg);
    cluster_size.push_back(level.codebook->cluster_size);
    cooldown.push_back(level.codebook->cooldown);
    rng.push_back(level.codebook->rng);
    x.push_back(level.x);
  }
  const auto replaced = distributed::synced_replace_dead_codes_(
      {embed, embed_avg, cluster_size, cooldown}, x, counts, rng, options);
  int64_t from = 0;
  for (const auto& level : levels) {
    const int64_t heads = level.codebook->num_codebooks();
    add_replaced(*level.codebook, replaced.slice(0, from, from + heads));
    from += heads;
  }
}

}  // namespace

std::string group_of(const VectorQuantizeImpl& vq) {
  const auto& options = vq.options;
  if (!options.sync_codebook().value_or(true)) {
    return "";
  }
  return options.process_group().value_or(distributed::default_group());
}

Ranks ranks_of(const VectorQuantizeImpl& vq, const std::string& owner) {
  const auto& options = vq.options;
  Ranks ranks;
  if (vq.is_training()) {
    ranks.group_name = group_of(vq);
  }
  if (!ranks.alone()) {
    ranks.label = owner + "(dim=" + std::to_string(options.dim()) +
                  ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
    ranks.reduction = options.reduction();
  }
  return ranks;
}

void shake_hands(const std::vector<Codebook>& codebooks, const Ranks& ranks) {
  if (ranks.alone()) {
    return;
  }
  std::vector<at::Tensor> state;
  distributed::HandshakeOptions options;
  static_cast<distributed::SyncOptions&>(options) = ranks;
  options.handle = codebooks[0]->handle();
  for (const auto& codebook : codebooks) {
    append(state, codebook->replicated_state());
    options.signature += (options.signature.empty() ? "" : "; ") + codebook->signature();
  }
  distributed::handshake_(state, options);
}

at::Tensor noise_rng(const at::Tensor& rng, const Ranks& ranks) {
  if (ranks.alone()) {
    return rng;
  }
  const auto rank = distributed::Group(ranks.group_name, {ranks.label, {}}).rank();
  return at::stack({rng[0].add(rank * kSeedsApart), rng[1]});
}

std::vector<Statistics> collect(const std::vector<Tokens>& levels, const Ranks& ranks) {
  if (!ranks.alone()) {
    return collect_synced(levels, ranks);
  }
  std::vector<Statistics> statistics;
  for (const auto& level : levels) {
    statistics.push_back(
        ops::code_statistics(level.x, level.indices, level.codebook->exponents(), level.mask));
  }
  return statistics;
}

void replace_dead_codes(const std::vector<Tokens>& levels, const std::vector<at::Tensor>& counts,
                        const Ranks& ranks) {
  if (!levels[0].codebook->has_dead_code_replacement()) {
    return;
  }
  std::vector<at::Tensor> embed;
  for (const auto& level : levels) {
    embed.push_back(level.codebook->wide_embed());
  }
  if (ranks.alone()) {
    for (size_t i = 0; i < levels.size(); ++i) {
      auto& state = *levels[i].codebook;
      add_replaced(
          state, ops::replace_dead_codes_(embed[i], state.embed_avg, state.cluster_size,
                                          state.cooldown, levels[i].x, counts[i], state.rng,
                                          levels[i].mask, dead_code_options(*levels[0].codebook)));
    }
  } else {
    replace_synced(levels, embed, counts, ranks);
  }
  for (size_t i = 0; i < levels.size(); ++i) {
    levels[i].codebook->store_embed(embed[i]);
  }
}

void advance_rng(const at::Tensor& rng, const OptionalTensor& counts, const OptionalTensor& mask,
                 const at::Tensor& x, const Ranks& ranks) {
  if (counts) {
    functional::advance_rng_(rng, counts->gt(0));
  } else if (!ranks.alone()) {
    // Nothing was exchanged, so nobody knows of the others' tokens: all count.
    functional::advance_rng_(rng);
  } else if (x.size(1) > 0) {
    functional::advance_rng_(rng, mask);
  }
}

}  // namespace torchvq::detail
