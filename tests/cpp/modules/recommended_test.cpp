// recommended: the options of every class, as tests/python/test_recommended.py has them in Python.
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torchvq/options/binary_mapper.h>
#include <torchvq/options/evo_lfq.h>
#include <torchvq/options/fsp.h>
#include <torchvq/options/fsq.h>
#include <torchvq/options/hierarchical_vq.h>
#include <torchvq/options/latent_quantize.h>
#include <torchvq/options/lfq.h>
#include <torchvq/options/random_projection_quantizer.h>
#include <torchvq/options/recommended.h>
#include <torchvq/options/residual_fsq.h>
#include <torchvq/options/residual_lfq.h>
#include <torchvq/options/residual_vq.h>
#include <torchvq/options/sim_vq.h>
#include <torchvq/options/vector_quantize.h>

#include "expect_throw.h"

namespace torchvq::recommended_test {
namespace {

using testing::expect_throw_with;

constexpr int64_t kBits = 6, kCodes = 64;
const std::vector<int64_t> kLevels{8, 8};

void expect_averages(const VectorQuantizeOptions& options) {
  EXPECT_TRUE(options.kmeans_init());
  EXPECT_EQ(options.decay(), 0.95);
  EXPECT_EQ(options.dead_code_threshold_fraction(), 0.1);
}

void expect_sphere(const LFQOptions& options) {
  EXPECT_TRUE(options.spherical());
  EXPECT_EQ(options.entropy_loss_weight(), 0.005);
  EXPECT_EQ(options.commitment_loss_weight(), 0.1);
}

void expect_pull(const LFQOptions& options) {
  EXPECT_FALSE(options.spherical());
  EXPECT_EQ(options.commitment_loss_weight(), 0.25);
}

TEST(RecommendedTest, CodebooksThatLearnByAverages) {
  const auto vq = recommended(VectorQuantizeOptions(8), kBits);
  EXPECT_EQ(vq.codebook_size(), kCodes);
  expect_averages(vq);
  const auto stack = recommended(ResidualVQOptions(8).num_quantizers(3), kBits);
  EXPECT_EQ(stack.codebook_size().sizes, std::vector<int64_t>{kCodes});
  EXPECT_FALSE(stack.codebook_size().each);
  expect_averages(stack.vq());
  const auto groups = recommended(GroupedResidualVQOptions(8), kBits);
  EXPECT_EQ(groups.rvq().codebook_size().sizes, std::vector<int64_t>{kCodes});
  expect_averages(groups.rvq().vq());
}

TEST(RecommendedTest, CodebooksWithoutATableHaveTheirDefaults) {
  EXPECT_EQ(recommended(HierarchicalVQOptions(8, 2, std::vector<int64_t>{1, 4}), kBits)
                .codebook_size()
                .sizes,
            std::vector<int64_t>{kCodes});
  EXPECT_EQ(recommended(SimVQOptions(8, 2), kBits).codebook_size(), kCodes);
  EXPECT_EQ(recommended(ResidualSimVQOptions(8, 3, 2), kBits).codebook_size(), kCodes);
  const auto projected = recommended(RandomProjectionQuantizerOptions(8, 2, 4), kBits);
  EXPECT_EQ(projected.codebook_size(), kCodes);
  EXPECT_EQ(projected.codebook_dim(), 16);
}

TEST(RecommendedTest, Signs) {
  const auto lfq = recommended(LFQOptions(), kBits);
  EXPECT_EQ(lfq.codebook_size(), std::optional(kCodes));
  expect_sphere(lfq);
  const auto evo = recommended(EvoLFQOptions(LFQOptions()), kBits);
  EXPECT_EQ(evo.lfq().codebook_size(), std::optional(kCodes));
  expect_sphere(evo.lfq());
  const auto stack = recommended(ResidualLFQOptions(8, 3, 2), kBits);
  EXPECT_EQ(stack.codebook_size(), kCodes);
  expect_pull(stack.lfq());
  const auto groups = recommended(GroupedResidualLFQOptions(8, ResidualLFQOptions(8, 3, 2)), kBits);
  EXPECT_EQ(groups.rlfq().codebook_size(), kCodes);
  expect_pull(groups.rlfq().lfq());
}

TEST(RecommendedTest, LevelsAndBits) {
  EXPECT_EQ(recommended(FSQOptions({2}), kBits).levels(), kLevels);
  EXPECT_EQ(recommended(FSPOptions({2}), kBits).levels(), kLevels);
  EXPECT_EQ(recommended(ResidualFSQOptions({2}, 3), kBits).levels(), kLevels);
  const GroupedResidualFSQOptions groups(8, ResidualFSQOptions({2}, 3));
  EXPECT_EQ(recommended(groups, kBits).rfsq().levels(), kLevels);
  EXPECT_EQ(recommended(LatentQuantizeOptions({2}, 8), kBits).levels(), kLevels);
  EXPECT_EQ(recommended(BinaryMapperOptions(), kBits).bits(), kBits);
}

TEST(RecommendedTest, OtherOptionsStay) {
  const auto options = recommended(VectorQuantizeOptions(8).heads(2).eps(1e-3).decay(0.5));
  EXPECT_EQ(options.dim(), 8);
  EXPECT_EQ(options.heads(), 2);
  EXPECT_EQ(options.eps(), 1e-3);
  EXPECT_EQ(options.decay(), 0.95);
  EXPECT_EQ(options.codebook_size(), 1024);
}

TEST(RecommendedTest, DecayFollowsTheTokensOfAStep) {
  const auto decay = [](int64_t tokens) {
    return recommended(VectorQuantizeOptions(8), 10, tokens).decay();
  };
  EXPECT_EQ(decay(1), 0.99);
  EXPECT_EQ(decay(1024), 0.975);
  EXPECT_EQ(decay(1000000), 0.9);
}

TEST(RecommendedTest, AveragesOfMovingTokensAreShorter) {
  const auto decay = [](int64_t tokens) {
    return recommended(VectorQuantizeOptions(8), 10, tokens, /*moving=*/true).decay();
  };
  EXPECT_EQ(decay(1), 0.975);
  EXPECT_EQ(decay(512), 0.969);
  EXPECT_EQ(decay(1000000), 0.9);
}

TEST(RecommendedTest, NamesAreReadInAnyCase) {
  const std::vector<std::string> lines{"codebook_size=512", "kmeans_init=True", "decay=0.95",
                                       "dead_code_threshold_fraction=0.1"};
  for (const char* name : {"vq", "VQ", "vectorquantize", "VectorQuantize"}) {
    EXPECT_EQ(recommended_options(name, 9), lines) << name;
  }
  EXPECT_EQ(recommended_options("bsq"), recommended_options("LFQ"));
}

TEST(RecommendedTest, Errors) {
  expect_throw_with<c10::ValueError>([] { recommended_options("PQ"); },
                                     "expected quantizer to be one of VectorQuantize, ");
  expect_throw_with<c10::ValueError>([] { recommended(VectorQuantizeOptions(8), 31); },
                                     "recommended: expected bits to be in [1, 30], but got 31");
  expect_throw_with<c10::ValueError>([] { recommended(FSQOptions({8}), 19); },
                                     "expected bits to be in [3, 18], but got 19");
  expect_throw_with<c10::ValueError>(
      [] { recommended(FSQOptions({8}), 8, 64); },
      "expected tokens to be at least 1, and for VectorQuantize, but got 64 for FSQ");
  expect_throw_with<c10::ValueError>([] { recommended(VectorQuantizeOptions(8), 8, 0); },
                                     "but got 0 for VectorQuantize");
  expect_throw_with<c10::ValueError>(
      [] { recommended(VectorQuantizeOptions(8), 8, std::nullopt, /*moving=*/true); },
      "expected tokens to be given with moving=True, but got none");
}

}  // namespace
}  // namespace torchvq::recommended_test
