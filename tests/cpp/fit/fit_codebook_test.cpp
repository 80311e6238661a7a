// The oracle is the fixed point of Lloyd's iteration, checked with distances and means in float64.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torchvq/fit/evaluate_codebook.h>
#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/fit/fit_codebook.h>
#include <torchvq/fit/fit_stack.h>

#include <cmath>

#include "expect_throw.h"

namespace torchvq::fit::fit_codebook_test {
namespace {

using torchvq::testing::expect_throw_with;

functional::VectorBlocks blocks_of(const at::Tensor& x, int64_t block_rows = 65536) {
  return {x.size(0), x.size(1), block_rows,
          [x](int64_t first, int64_t count) { return x.narrow(0, first, count); }};
}

FitCodebookOptions options_of(int64_t size, const std::string& metric = "euclidean",
                              int64_t iterations = 100) {
  FitCodebookOptions options;
  options.codebook_size = size;
  options.metric = metric;
  options.iterations = iterations;
  return options;
}

at::Tensor normal(at::IntArrayRef size, uint64_t seed = 1) {
  return at::randn(size, at::detail::createCPUGenerator(seed), at::kFloat);
}

at::Tensor nearest(const at::Tensor& x, const at::Tensor& codebook) {
  return at::cdist(x.to(at::kDouble), codebook.to(at::kDouble), 2, 2).argmin(1);
}

TEST(FitCodebookTest, SettlesWhereEveryCodeIsTheMeanOfItsVectors) {
  const auto x = normal({2000, 5});
  const auto fit = fit_codebook(blocks_of(x), options_of(16));
  ASSERT_TRUE(fit.converged);
  const auto indices = nearest(x, fit.codebook);
  EXPECT_TRUE(at::equal(fit.evaluation.counts, indices.bincount({}, 16)));
  const auto sums = at::zeros({16, 5}, at::kDouble).index_add(0, indices, x.to(at::kDouble));
  const auto means = sums / fit.evaluation.counts.unsqueeze(1);
  // Fixed-point sums round by 2^-30 of the largest element per vector, far below float32.
  EXPECT_TRUE(at::allclose(fit.codebook.to(at::kDouble), means, 1e-6, 1e-7));
  const auto error =
      (x - fit.codebook.index_select(0, indices)).to(at::kDouble).square().mean().item<double>();
  EXPECT_NEAR(fit.evaluation.error.mse(), error, 1e-9);
}

TEST(FitCodebookTest, FindsClustersThatAreFarApart) {
  const auto centres = normal({8, 3}).mul(100);
  const auto owner = at::arange(800).remainder(8);
  const auto noise = normal({800, 3}, 2);
  const auto x = centres.index_select(0, owner) + noise;
  const auto fit = fit_codebook(blocks_of(x), options_of(8));
  EXPECT_TRUE(fit.evaluation.counts.eq(100).all().item<bool>());
  EXPECT_LT(fit.evaluation.error.mse(), noise.square().mean().item<double>());
}

TEST(FitCodebookTest, BlocksThreadsAndRepeatsDoNotChangeABit) {
  const auto x = normal({3000, 6});
  for (const std::string metric : {"euclidean", "cosine"}) {
    const auto options = options_of(40, metric, 6);
    const auto expected = fit_codebook(blocks_of(x), options);
    const auto threads = at::get_num_threads();
    for (const int64_t block_rows : {1000, 256, 77}) {
      at::set_num_threads(block_rows == 256 ? 1 : 2);
      const auto fit = fit_codebook(blocks_of(x, block_rows), options);
      EXPECT_TRUE(at::equal(fit.codebook, expected.codebook)) << metric << " " << block_rows;
      EXPECT_EQ(fit.evaluation.error.mse(), expected.evaluation.error.mse());
    }
    at::set_num_threads(threads);
  }
}

TEST(FitCodebookTest, AnotherSeedStartsElsewhere) {
  const auto x = normal({2000, 6});
  auto options = options_of(40, "euclidean", 1);
  const auto first = fit_codebook(blocks_of(x), options);
  options.seed = 1;
  EXPECT_FALSE(at::equal(fit_codebook(blocks_of(x), options).codebook, first.codebook));
}

TEST(FitCodebookTest, CosineGivesUnitCodesThatIgnoreLength) {
  const auto x = normal({1000, 4});
  const auto fit = fit_codebook(blocks_of(x), options_of(12, "cosine"));
  EXPECT_TRUE(at::allclose(fit.codebook.norm(2, 1), at::ones({12})));
  const auto longer = x * at::arange(1, 1001).remainder(4).exp2().unsqueeze(1);
  EXPECT_TRUE(
      at::equal(fit_codebook(blocks_of(longer), options_of(12, "cosine")).codebook, fit.codebook));
}

TEST(FitCodebookTest, CosineMakesNoCodesOfZeroVectors) {
  auto x = normal({1000, 4});
  x.narrow(0, 100, 800).zero_();
  const auto fit = fit_codebook(blocks_of(x), options_of(64, "cosine"));
  EXPECT_TRUE(at::allclose(fit.codebook.norm(2, 1), at::ones({64})));
}

TEST(FitCodebookTest, EveryClusterGetsACode) {
  const auto x = normal({32, 16}).mul(5).repeat({64, 1}) + normal({2048, 16}, 2).mul(0.1);
  EXPECT_LT(fit_codebook(blocks_of(x), options_of(32)).evaluation.error.mse(), 0.011);
}

TEST(FitCodebookTest, AsManyCodesAsVectorsDescribeThemExactly) {
  const auto x = normal({37, 4});
  const auto fit = fit_codebook(blocks_of(x), options_of(37));
  EXPECT_LT(fit.evaluation.error.mse(), 1e-14);
  EXPECT_TRUE(fit.evaluation.counts.eq(1).all().item<bool>());
}

TEST(FitCodebookTest, EqualVectorsAndZerosAreHarmless) {
  for (const double value : {0.0, 3.0}) {
    const auto x = at::full({50, 3}, value, at::kFloat);
    for (const std::string metric : {"euclidean", "cosine"}) {
      const auto fit = fit_codebook(blocks_of(x), options_of(4, metric));
      EXPECT_TRUE(fit.converged);
      EXPECT_LT(fit.evaluation.error.mse(), 1e-12);
      EXPECT_EQ(fit.evaluation.counts.sum().item<int64_t>(), 50);
    }
  }
}

TEST(FitCodebookTest, OneHugeVectorDoesNotBlurTheOthers) {
  auto x = normal({1000, 3});
  x[500].fill_(1e7);
  const auto fit = fit_codebook(blocks_of(x), options_of(8));
  x[500].zero_();
  const auto indices = nearest(x, fit.codebook);
  const auto error = (x - fit.codebook.index_select(0, indices)).square().mean().item<double>();
  x[500] = x[501];
  EXPECT_LT(error, 1.2 * fit_codebook(blocks_of(x), options_of(7)).evaluation.error.mse());
}

TEST(FitCodebookTest, TellsHowFarItIs) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  fit_codebook(blocks_of(normal({30, 2}), 20), options_of(20, "euclidean", 1),
               [&](int64_t pass, int64_t rows) { seen.emplace_back(pass, rows); });
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 20}, {0, 30}, {1, 20},
                                                             {1, 30}, {2, 20}, {2, 30}};
  EXPECT_EQ(seen, expected);
}

TEST(FitCodebookTest, RefusesBadOptions) {
  const auto x = blocks_of(normal({30, 2}));
  expect_throw_with<c10::ValueError>([&] { fit_codebook(x, options_of(31)); },
                                     "in [1, 30], the number of vectors, but got 31");
  expect_throw_with<c10::ValueError>([&] { fit_codebook(x, options_of(0)); }, "but got 0");
  expect_throw_with<c10::ValueError>([&] { fit_codebook(x, options_of(3, "dot")); },
                                     "but got 'dot'");
  expect_throw_with<c10::ValueError>([&] { fit_codebook(x, options_of(3, "cosine", -1)); },
                                     "at least 0, but got -1");
  FitStackOptions stack;
  stack.level = options_of(3);
  for (const double noise : {-1.0, std::nan("")}) {
    stack.refine_noise = noise;
    expect_throw_with<c10::ValueError>([&] { fit_stack(x, stack); },
                                       "fit_stack: expected refine_noise to be at least 0");
  }
}

TEST(VectorBlocksTest, VectorsThatGrowAfterTheFirstPassAreRefused) {
  const auto x = normal({300, 4});
  auto blocks = blocks_of(x, 100);
  int64_t reads = 0;
  blocks.read = [&](int64_t first, int64_t count) {
    return x.narrow(0, first, count) * (++reads > 3 ? 1e6 : 1.0);
  };
  expect_throw_with<c10::ValueError>([&] { fit_codebook(blocks, options_of(8)); },
                                     "fit_codebook: expected vectors to stay as they were");
}

TEST(EvaluateTest, RaggedStacksAreRefused) {
  const auto x = blocks_of(normal({30, 4}));
  CodebookStack stack;
  stack.groups = {{normal({8, 2}), normal({6, 2})}, {normal({8, 2})}};
  expect_throw_with<c10::ValueError>([&] { evaluate_stack(x, stack); }, "groups of 2 levels");
  expect_throw_with<c10::ValueError>([&] { encode_stack(normal({30, 4}), stack); }, "but got 1");
  stack.groups = {{normal({8, 4}), normal({6, 3})}};
  expect_throw_with<c10::ValueError>([&] { encode_stack(normal({30, 4}), stack); }, "of one D");
}

TEST(VectorBlocksTest, WhatCannotBeReadIsRefused) {
  const auto codes = normal({4, 8});
  auto blocks = blocks_of(normal({30, 8}), 0);
  expect_throw_with<c10::ValueError>([&] { evaluate_codebook(blocks, codes, "euclidean"); },
                                     "block_rows of vectors to be at least 1, but got 0");
  expect_throw_with<c10::ValueError>([&] { fit_codebook(blocks, options_of(4)); }, "block_rows");
  blocks.block_rows = 10;
  blocks.rows = -1;
  expect_throw_with<c10::ValueError>([&] { evaluate_codebook(blocks, codes, "euclidean"); },
                                     "at least 0 rows");
  blocks.rows = 30;
  const auto read = blocks.read;
  blocks.read = [read](int64_t first, int64_t count) { return read(first, count - 1); };
  expect_throw_with<c10::ValueError>([&] { fit_codebook(blocks, options_of(4)); },
                                     "expected read to give shape (10, 8), but got [9, 8]");
  blocks.read = [read](int64_t first, int64_t count) { return read(first, count).to(at::kDouble); };
  expect_throw_with<c10::TypeError>([&] { evaluate_codebook(blocks, codes, "euclidean"); },
                                    "float32");
  blocks.read = nullptr;
  expect_throw_with<c10::ValueError>([&] { evaluate_codebook(blocks, codes, "euclidean"); },
                                     "a function that reads them");
}

TEST(EvaluateTest, ArgumentsAreCheckedEvenWithoutVectors) {
  for (const int64_t rows : {0, 30}) {
    const auto x = blocks_of(normal({rows, 8}));
    const auto codes = normal({4, 8});
    expect_throw_with<c10::ValueError>([&] { evaluate_codebook(x, codes, "dot"); }, "metric");
    EXPECT_THROW(evaluate_codebook(x, normal({4, 7}), "euclidean"), c10::ValueError);
    expect_throw_with<c10::ValueError>([&] { evaluate_stack(x, {}); }, "at least one codebook");
    CodebookStack stack;
    stack.groups = {{codes, codes}};
    expect_throw_with<c10::ValueError>([&] { evaluate_stack(x, stack, 0); }, "beam");
    EXPECT_EQ(evaluate_stack(x, stack).counts.size(), 2);
  }
}

TEST(CodebookStackTest, HasOnlyItsOwnColumns) {
  const CodebookStack none, stack{{{at::ones({5, 4})}}};
  EXPECT_THROW(none.dim(), c10::ValueError);
  EXPECT_THROW(none.columns(), c10::ValueError);
  EXPECT_THROW(none.paths(), c10::ValueError);
  EXPECT_THROW(none.codebook(0), c10::ValueError);
  EXPECT_EQ(stack.codebook(0).size(0), 5);
  EXPECT_THROW(stack.codebook(1), c10::IndexError);
  EXPECT_THROW(stack.codebook(-1), c10::IndexError);
}

}  // namespace
}  // namespace torchvq::fit::fit_codebook_test
