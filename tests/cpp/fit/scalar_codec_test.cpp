#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <torchvq/fit/fit_scalar_codec.h>
#include <torchvq/fit/scalar_codec.h>

#include <limits>
#include <string>
#include <vector>

#include "expect_throw.h"

namespace torchvq::fit::scalar_codec_test {
namespace {

using torchvq::testing::expect_throw_with;

functional::VectorBlocks blocks_of(const at::Tensor& x, int64_t block_rows) {
  functional::VectorBlocks blocks;
  blocks.rows = x.size(0);
  blocks.dim = x.size(1);
  blocks.block_rows = block_rows;
  blocks.read = [x](int64_t first, int64_t count) { return x.narrow(0, first, count); };
  return blocks;
}

at::Tensor vectors() {
  at::manual_seed(0);
  return at::randn({2000, 6}).mm(at::randn({6, 6})).add_(2);
}

FitScalarOptions options_of(const std::string& method) {
  FitScalarOptions options;
  options.method = method;
  options.levels = method == "fsq" ? std::vector<int64_t>{7, 5} : std::vector<int64_t>{2, 2};
  options.num_codebooks = 2;
  return options;
}

TEST(ScalarCodecTest, EvaluationIsOfWhatDecodingGives) {
  const auto x = vectors();
  for (const std::string method : {"fsq", "lfq"}) {
    const auto fit = fit_scalar_codec(blocks_of(x, 300), options_of(method));
    const auto codes = encode_scalar(x, fit.codec);
    EXPECT_EQ(codes.sizes(), (std::vector<int64_t>{2000, 2}));
    const auto decoded = decode_scalar(codes, fit.codec);
    const auto error = (x.to(at::kDouble) - decoded).square().mean().item<double>();
    EXPECT_NEAR(fit.evaluation.error.mse(), error, 1e-9 * error);
    ASSERT_EQ(fit.evaluation.counts.size(), 2U);
    for (int64_t c = 0; c < 2; ++c) {
      const auto counted = at::bincount(codes.select(1, c), {}, fit.codec.codebook_size());
      EXPECT_TRUE(at::equal(fit.evaluation.counts[static_cast<size_t>(c)], counted));
    }
    // Four features of 2 to 3 bits leave less than half of the variance of six correlated ones.
    EXPECT_LT(error, 0.5 * x.var(0, false).mean().item<double>());
  }
}

TEST(ScalarCodecTest, BlocksDoNotMatter) {
  const auto x = vectors();
  for (const std::string method : {"fsq", "lfq"}) {
    const auto one = fit_scalar_codec(blocks_of(x, 2000), options_of(method)).codec;
    const auto many = fit_scalar_codec(blocks_of(x, 7), options_of(method)).codec;
    EXPECT_TRUE(at::equal(one.in_weight, many.in_weight));
    EXPECT_TRUE(at::equal(one.out_bias, many.out_bias));
    EXPECT_TRUE(
        at::equal(encode_scalar(x, one), at::cat({encode_scalar(x.narrow(0, 0, 33), one),
                                                  encode_scalar(x.narrow(0, 33, 1967), one)})));
  }
}

TEST(ScalarCodecTest, VectorsOfAsManyFeaturesAsLevelsHaveNoMap) {
  FitScalarOptions options;
  options.levels = {8, 5, 3};
  const auto x = at::randn({500, 3});
  const auto codec = fit_scalar_codec(blocks_of(x, 100), options).codec;
  EXPECT_FALSE(codec.in_weight.defined());
  const auto codes = encode_scalar(x, codec);
  EXPECT_GT(std::get<0>(at::_unique(codes)).numel(), 100);
  // Half a step of 8, 5 and 3 levels; for an even number, another half step and the clipped part.
  const auto apart = (x.tanh() - decode_scalar(codes, codec)).abs().amax(0);
  EXPECT_TRUE(apart.le(at::tensor({0.38, 0.26, 0.51})).all().item<bool>());
  const auto masked = decode_scalar(at::full({4, 1}, -1, at::kLong), codec);
  EXPECT_EQ(masked.abs().max().item<double>(), 0);
}

TEST(ScalarCodecTest, ACodeOfMinusOneAddsNothing) {
  const auto x = vectors();
  for (const char* method : {"fsq", "lfq"}) {
    const auto codec = fit_scalar_codec(blocks_of(x, 100), options_of(method)).codec;
    const auto codes = encode_scalar(x, codec);
    ASSERT_EQ(codes.size(1), 2);
    auto first = codes.clone(), second = codes.clone();
    second.select(1, 0).fill_(-1);
    first.select(1, 1).fill_(-1);
    const auto both = decode_scalar(first, codec) + decode_scalar(second, codec) - codec.out_bias;
    EXPECT_TRUE(at::allclose(both, decode_scalar(codes, codec), 1e-5, 1e-5)) << method;
    EXPECT_EQ(decode_scalar(at::full_like(codes, -1), codec).abs().max().item<double>(), 0);
  }
}

TEST(ScalarCodecTest, FittedMapsRequireNoGradient) {
  const auto x = vectors().requires_grad_();
  for (const char* method : {"fsq", "lfq"}) {
    const auto codec = fit_scalar_codec(blocks_of(x, 100), options_of(method)).codec;
    EXPECT_FALSE(codec.in_weight.requires_grad() || codec.out_bias.requires_grad()) << method;
  }
}

TEST(ScalarCodecTest, Errors) {
  const auto x = vectors();
  auto options = options_of("fsq");
  options.num_codebooks = 4;
  EXPECT_THROW(fit_scalar_codec(blocks_of(x, 100), options), c10::ValueError);
  // More than 2^63 features.
  options.num_codebooks = (int64_t{1} << 62) + 1;
  EXPECT_THROW(fit_scalar_codec(blocks_of(x, 100), options), c10::ValueError);
  options.num_codebooks = 1;
  for (const auto& levels : {std::vector<int64_t>{5}, {2, 3}, {-3}, {}}) {
    options.method = "lfq";
    options.levels = levels;
    EXPECT_THROW(fit_scalar_codec(blocks_of(x, 100), options), c10::ValueError);
  }
  options.method = "pq";
  EXPECT_THROW(fit_scalar_codec(blocks_of(x, 100), options), c10::ValueError);
  EXPECT_THROW(fit_scalar_codec(blocks_of(x.narrow(0, 0, 0), 100), options_of("fsq")),
               c10::ValueError);
  const auto codec = fit_scalar_codec(blocks_of(x, 100), options_of("fsq")).codec;
  auto broken = x.clone();
  broken[1234][3] = std::numeric_limits<float>::quiet_NaN();
  expect_throw_with<c10::ValueError>(
      [&] { fit_scalar_codec(blocks_of(broken, 100), options_of("fsq")); },
      "fit_scalar_codec: expected finite vectors, but row 1234 holds NaN or infinity");
  EXPECT_THROW(encode_scalar(x.narrow(1, 0, 5), codec), c10::ValueError);
  EXPECT_THROW(decode_scalar(at::zeros({2, 3}, at::kLong), codec), c10::ValueError);
  EXPECT_THROW(decode_scalar(at::full({2, 2}, 35, at::kLong), codec), c10::IndexError);
}

TEST(ScalarCodecTest, RefusesPartsThatDoNotFit) {
  const auto x = vectors();
  const auto refused = [&](const ScalarCodec& codec) {
    EXPECT_THROW(encode_scalar(x, codec), c10::ValueError);
    EXPECT_THROW(decode_scalar(at::zeros({2, codec.num_codebooks}, at::kLong), codec),
                 c10::ValueError);
  };
  const auto fitted = fit_scalar_codec(blocks_of(x, 100), options_of("fsq")).codec;
  const auto changed = [&](auto change) {
    auto codec = fitted;
    change(codec);
    refused(codec);
  };
  changed([](auto& codec) { codec.method = "pq"; });
  changed([](auto& codec) { codec.method = "lfq"; });  // levels of more than a sign
  changed([](auto& codec) { codec.num_codebooks = 0; });
  changed([](auto& codec) { codec.levels.clear(); });
  changed([](auto& codec) { codec.in_bias = at::Tensor(); });
  changed([](auto& codec) { codec.out_weight = codec.out_weight.t(); });
  changed([](auto& codec) {
    codec.in_weight = codec.in_bias = codec.out_weight = codec.out_bias = at::Tensor();
  });
}

}  // namespace
}  // namespace torchvq::fit::scalar_codec_test
