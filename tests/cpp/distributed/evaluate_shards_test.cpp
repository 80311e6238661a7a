// Evaluation of vectors that several processes share. The oracle is one process with all vectors.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <torchvq/fit/evaluate_codebook.h>
#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/fit/projected_codec.h>
#include <torchvq/fit/scalar_codec.h>

#include "distributed/ranks.h"

namespace torchvq::fit::evaluate_shards_test {
namespace {

using torchvq::testing::on_ranks;

constexpr int64_t kDim = 6;
const std::vector<int64_t> kRows = {50, 0, 23};

functional::VectorBlocks blocks_of(const torch::Tensor& x) {
  return {x.size(0), x.size(1), 16,
          [x](int64_t first, int64_t count) { return x.narrow(0, first, count); }};
}

torch::Tensor vectors() {
  return torch::randn({73, kDim}, at::detail::createCPUGenerator(1), torch::kFloat);
}

/// Whether `evaluate` gives every rank what it gives one process with all vectors.
template <typename Evaluate>
void expect_result_of_all(const Evaluate& evaluate) {
  const auto x = vectors();
  const Evaluation expected = evaluate(blocks_of(x));
  const auto errors = on_ranks(3, [&](int rank, const std::string& name) {
    int64_t first = 0;
    for (int before = 0; before < rank; ++before) first += kRows[before];
    auto own = blocks_of(x.narrow(0, first, kRows[rank]));
    own.shard = {name, first, x.size(0)};
    const Evaluation got = evaluate(own);
    EXPECT_EQ(got.error.mse(), expected.error.mse());
    EXPECT_EQ(got.error.vectors(), x.size(0));
    ASSERT_EQ(got.counts.size(), expected.counts.size());
    for (size_t i = 0; i < got.counts.size(); ++i)
      EXPECT_TRUE(torch::equal(got.counts[i], expected.counts[i]));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(EvaluateShards, OfACodebook) {
  expect_result_of_all([](const functional::VectorBlocks& x) -> Evaluation {
    const auto [counts, error] = evaluate_codebook(x, vectors().narrow(0, 0, 5), "cosine");
    return {{counts}, error};
  });
}

TEST(EvaluateShards, OfAStack) {
  CodebookStack stack;
  for (int64_t group = 0; group < 2; ++group)
    stack.groups.push_back({vectors().narrow(1, 3 * group, 3), vectors().narrow(1, 2, 3)});
  expect_result_of_all([&](const functional::VectorBlocks& x) { return evaluate_stack(x, stack); });
}

TEST(EvaluateShards, OfAProjectedCodec) {
  ProjectedCodec codec;
  codec.dim = kDim;
  codec.stacks.resize(2);
  codec.stacks[0].levels = {{{}, vectors().narrow(0, 0, 5), {}}, {{}, vectors(), {}}};
  codec.stacks[1].in.weight = vectors().narrow(0, 0, 2);
  codec.stacks[1].levels = {{{}, vectors().narrow(1, 0, 2), {}}};
  codec.stacks[1].out.weight = vectors().narrow(0, 0, 2).t();
  expect_result_of_all(
      [&](const functional::VectorBlocks& x) { return evaluate_projected(x, codec); });
}

TEST(EvaluateShards, OfAScalarCodec) {
  ScalarCodec codec;
  codec.levels = {5, 4, 3};
  codec.num_codebooks = 2;
  codec.dim = kDim;
  expect_result_of_all(
      [&](const functional::VectorBlocks& x) { return evaluate_scalar(x, codec); });
  // Too many codes to count.
  codec.levels = {512, 512, 512};
  expect_result_of_all(
      [&](const functional::VectorBlocks& x) { return evaluate_scalar(x, codec); });
}

}  // namespace
}  // namespace torchvq::fit::evaluate_shards_test
