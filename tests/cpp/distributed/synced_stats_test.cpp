// stats() of the modules: for this rank's tokens, and for those of all ranks. The oracles are
// counts by hand and one process with the concatenated batch.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/state_dict.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::synced_stats_test {
namespace {

using testing::batch_of;
using testing::group_of;
using testing::joined;
using testing::kDim;
using testing::on_ranks;
using testing::options_with;

/// The statistics of the indices of a forward, without -1.
CodebookStats counted(const torch::Tensor& indices, int64_t codes) {
  const auto chosen = indices.flatten().masked_select(indices.flatten().ge(0));
  std::vector<double> counts(codes);
  for (int64_t n = 0; n < chosen.numel(); ++n) counts[chosen[n].item<int64_t>()] += 1;
  CodebookStats stats;
  stats.tokens = chosen.numel();
  for (const double count : counts) {
    if (count == 0) continue;
    const double share = count / static_cast<double>(stats.tokens);
    stats.usage += 1.0 / static_cast<double>(codes);
    stats.entropy_bits -= share * std::log2(share);
  }
  stats.perplexity = stats.tokens > 0 ? std::exp2(stats.entropy_bits) : 0;
  return stats;
}

void expect_uses(const CodebookStats& found, const CodebookStats& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_NEAR(found.usage, expected.usage, 1e-12);
  EXPECT_NEAR(found.entropy_bits, expected.entropy_bits, 1e-12);
  EXPECT_NEAR(found.perplexity, expected.perplexity, 1e-9);
}

VectorQuantizeOptions replacing(const std::optional<std::string>& group) {
  return options_with([](auto& options) { options.threshold_ema_dead_code(2).decay(0.5); }, group);
}

TEST(StatsTest, CountTheLastTrainingForward) {
  torch::manual_seed(0);
  VectorQuantize quantizer(replacing(std::nullopt));
  EXPECT_EQ(quantizer->stats().tokens, 0);
  const auto before = quantizer->codebook().clone();
  const auto mask = torch::rand({1, 50}) < 0.7;
  const auto output =
      quantizer(torch::randn({1, 50, kDim}), VectorQuantizeForwardOptions().mask(mask));
  const auto stats = quantizer->stats();
  expect_uses(stats, counted(output.indices, 24));
  const auto used = output.indices.masked_select(output.indices.ge(0));
  const std::set<int64_t> kept(used.data_ptr<int64_t>(), used.data_ptr<int64_t>() + used.numel());
  EXPECT_GT(stats.replaced, 0);
  EXPECT_LE(stats.replaced, 24 - static_cast<int64_t>(kept.size())) << "codes in use stay";
  const auto& sizes = quantizer->codebook_state->cluster_size;
  EXPECT_EQ(stats.dead, sizes.lt(2).sum().item<int64_t>());

  quantizer->eval();
  quantizer(torch::randn({1, 9, kDim}));
  expect_uses(quantizer->stats(), counted(output.indices, 24));
}

TEST(StatsTest, AreCopiedButNoPartOfTheState) {
  torch::manual_seed(0);
  VectorQuantize quantizer(replacing(std::nullopt));
  const auto names = state_dict(*quantizer).size();
  const auto first = quantizer(torch::randn({1, 50, kDim})).indices;
  EXPECT_EQ(state_dict(*quantizer).size(), names);
  const auto copy = std::dynamic_pointer_cast<VectorQuantizeImpl>(quantizer->clone());
  quantizer(torch::randn({1, 7, kDim}));
  expect_uses(copy->stats(), counted(first, 24));
  EXPECT_EQ(quantizer->stats().tokens, 7);
  load_state_dict(*quantizer, state_dict(*copy));
  EXPECT_EQ(quantizer->stats().tokens, 0) << "another state has had no step yet";
}

TEST(StatsTest, AreThoseOfEachLevelAndGroup) {
  torch::manual_seed(0);
  auto options = GroupedResidualVQOptions(2 * kDim).groups(2);
  options.rvq().num_quantizers(3).codebook_size(24);
  GroupedResidualVQ quantizer(options);
  const auto indices = quantizer(torch::randn({1, 40, 2 * kDim})).indices;
  const auto stats = quantizer->stats();
  ASSERT_EQ(stats.size(), 2);
  for (int64_t group = 0; group < 2; ++group) {
    ASSERT_EQ(stats[group].size(), 3);
    for (int64_t level = 0; level < 3; ++level) {
      expect_uses(stats[group][level], counted(indices[group].select(-1, level), 24));
    }
  }
}

TEST(SyncedStatsTest, AreThoseOfOneProcess) {
  for (const int size : {2, 3}) {
    torch::manual_seed(1);
    VectorQuantize oracle(replacing(std::nullopt));
    std::vector<VectorQuantize> models;
    for (int rank = 0; rank < size; ++rank) {
      torch::manual_seed(1);
      models.emplace_back(replacing(group_of(rank)));
    }
    for (int step = 0; step < 6; ++step) {
      const auto batches = batch_of(step, size);
      std::vector<CodebookStats> own(size), all(size);
      std::vector<torch::Tensor> indices(size);
      const auto errors = on_ranks(size, [&](int rank, const std::string&) {
        const auto call = VectorQuantizeForwardOptions().mask(batches[rank].mask);
        indices[rank] = models[rank](batches[rank].x, call).indices;
        own[rank] = models[rank]->stats();
        all[rank] = models[rank]->stats(/*synced=*/true);
      });
      ASSERT_EQ(errors, std::vector<std::string>(size));
      const auto whole = joined(batches);
      oracle(whole.x, VectorQuantizeForwardOptions().mask(whole.mask));
      const auto expected = oracle->stats();
      for (int rank = 0; rank < size; ++rank) {
        SCOPED_TRACE(rank);
        expect_uses(own[rank], counted(indices[rank], 24));
        expect_uses(all[rank], expected);
        EXPECT_EQ(all[rank].dead, expected.dead);
        EXPECT_EQ(all[rank].replaced, expected.replaced);
      }
    }
  }
}

}  // namespace
}  // namespace torchvq::synced_stats_test
