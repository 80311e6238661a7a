// The step of a residual stack against a greedy search in float64 loops, written here.
#include <torchvq/functional/residual_quantize.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <torchvq/functional/vector_quantize.h>

#include "expect_throw.h"

namespace torchvq::residual_quantize_test {
namespace {

namespace F = functional;
using testing::expect_throw_with;

constexpr int64_t kBatch = 2, kTokens = 23, kRows = kBatch * kTokens, kDim = 5, kCodes = 9,
                  kLevels = 3;
constexpr double kDecay = 0.7, kEps = 1e-5;
/// Statistics are added in fixed point, which rounds relative to the largest token.
constexpr double kTolerance = 1e-6;

/// A stack of plain codebooks, and the arguments of a forward.
struct Stack {
  at::Tensor tokens;
  F::ResidualQuantizeArguments arguments;
  F::ResidualQuantizeOptions options;

  F::ResidualQuantizeStep step() const { return F::residual_quantize_(tokens, arguments, options); }
  [[nodiscard]] const F::CodebookState& state(int64_t level) const {
    return arguments.states[arguments.states.size() == 1 ? 0 : static_cast<size_t>(level)];
  }
};

F::CodebookState make_state(int64_t seed) {
  const auto codes = at::randn({1, kCodes, kDim}, at::kDouble);
  return {codes, at::ones({1, kCodes}, at::kDouble), codes.clone(), at::zeros({1}, at::kLong),
          at::tensor({seed, int64_t{0}})};
}

Stack make_stack(bool shared = false) {
  at::manual_seed(0);
  Stack stack;
  stack.tokens = at::randn({kBatch, kTokens, kDim}, at::kDouble) * 2;
  auto& arguments = stack.arguments;
  for (int64_t level = 0; level < (shared ? 1 : kLevels); ++level) {
    arguments.states.push_back(make_state(level));
  }
  for (int64_t level = 0; level < kLevels; ++level) {
    arguments.codebooks.push_back(stack.state(level).embed);
    arguments.step_counts.push_back(at::zeros({1, kCodes}, at::kLong));
  }
  stack.options.learns(true).finishes(true);
  stack.options.losses().training(true);
  stack.options.learning().decay(kDecay).eps(kEps);
  return stack;
}

using Row = std::vector<double>;

Row row_of(const at::Tensor& rows, int64_t row) {
  const auto flat = rows.detach().reshape({-1, kDim}).contiguous();
  const auto* data = flat.const_data_ptr<double>() + row * kDim;
  return {data, data + kDim};
}

double square_distance(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

/// The oracle: each token takes the nearest code of each level; the rest is the residual.
struct Greedy {
  std::vector<std::vector<int64_t>> indices;    ///< of each level and token
  std::vector<std::vector<Row>> left;           ///< what each level sees
  std::vector<Row> total{kRows, Row(kDim, 0)};  ///< sum of the codes

  Greedy(const Stack& stack, int64_t levels) {
    for (int64_t level = 0; level < levels; ++level) {
      indices.emplace_back(kRows);
      left.emplace_back(kRows);
    }
    for (int64_t row = 0; row < kRows; ++row) {
      auto rest = row_of(stack.tokens, row);
      for (int64_t level = 0; level < levels; ++level) walk(stack, level, row, rest);
    }
  }

  void walk(const Stack& stack, int64_t level, int64_t row, Row& rest) {
    left[level][row] = rest;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t code = 0; code < kCodes; ++code) {
      const auto distance = square_distance(rest, row_of(stack.arguments.codebooks[level], code));
      if (distance >= least) continue;
      least = distance;
      indices[level][row] = code;
    }
    const auto nearest = row_of(stack.arguments.codebooks[level], indices[level][row]);
    for (int64_t d = 0; d < kDim; ++d) {
      rest[d] -= nearest[d];
      total[row][d] += nearest[d];
    }
  }
};

/// Compares indices with the oracle; masked rows have index -1.
void expect_codes(const F::ResidualQuantizeStep& step, const Greedy& greedy,
                  const std::vector<bool>& masked = std::vector<bool>(kRows, false)) {
  const auto levels = static_cast<int64_t>(greedy.indices.size());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t level = 0; level < kLevels; ++level) {
      const bool none = masked[row] || level >= levels;
      ASSERT_EQ(step.indices[0][row][level].item<int64_t>(), none ? -1 : greedy.indices[level][row])
          << "token " << row << ", level " << level;
    }
    if (masked[row]) continue;
    ASSERT_LT(square_distance(row_of(step.quantized, row), greedy.total[row]), 1e-24);
  }
}

/// The mean squared distance between the residuals of a level and its codes.
double commitment(const Stack& stack, const Greedy& greedy, int64_t level,
                  const std::vector<bool>& masked = std::vector<bool>(kRows, false)) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    if (masked[row]) continue;
    sum += square_distance(greedy.left[level][row],
                           row_of(stack.arguments.codebooks[level], greedy.indices[level][row]));
    count += kDim;
  }
  return sum / static_cast<double>(count);
}

/// Checks the averages of a codebook after tokens of these levels, and its codes.
void expect_taught(const F::CodebookState& state, const Stack& before, const Greedy& greedy,
                   const std::vector<int64_t>& levels) {
  std::vector<double> sizes(kCodes, 0);
  std::vector<Row> sums(kCodes, Row(kDim, 0));
  for (const auto level : levels) {
    for (int64_t row = 0; row < kRows; ++row) {
      const auto code = greedy.indices[level][row];
      sizes[code] += 1;
      for (int64_t d = 0; d < kDim; ++d) sums[code][d] += greedy.left[level][row][d];
    }
  }
  const auto& old = before.state(levels[0]);
  double total = 0;
  for (int64_t code = 0; code < kCodes; ++code) {
    sizes[code] = kDecay * old.cluster_size[0][code].item<double>() + (1 - kDecay) * sizes[code];
    total += sizes[code];
  }
  for (int64_t code = 0; code < kCodes; ++code) {
    EXPECT_NEAR(state.cluster_size[0][code].item<double>(), sizes[code], kTolerance);
    const double smoothed = (sizes[code] + kEps) / (total + kCodes * kEps) * total;
    const auto average = row_of(old.embed_avg, code);
    const auto found = row_of(state.embed, code), kept = row_of(state.embed_avg, code);
    for (int64_t d = 0; d < kDim; ++d) {
      const double moved = kDecay * average[d] + (1 - kDecay) * sums[code][d];
      EXPECT_NEAR(kept[d], moved, kTolerance);
      EXPECT_NEAR(found[d], moved / smoothed, kTolerance);
    }
  }
}

/// The same stack with its own copy of the state.
Stack copy_of(const Stack& stack) {
  auto copy = stack;
  for (auto& state : copy.arguments.states) {
    state.embed = state.embed.clone();
    state.cluster_size = state.cluster_size.clone();
    state.embed_avg = state.embed_avg.clone();
  }
  for (size_t level = 0; level < copy.arguments.codebooks.size(); ++level) {
    copy.arguments.codebooks[level] = copy.state(static_cast<int64_t>(level)).embed;
  }
  return copy;
}

TEST(ResidualQuantizeTest, TakesTheNearestCodeOfEachLevelAndScoresIt) {
  const auto stack = make_stack(), before = copy_of(stack);
  const auto step = stack.step();
  const Greedy greedy(before, kLevels);
  expect_codes(step, greedy);
  for (int64_t level = 0; level < kLevels; ++level) {
    EXPECT_NEAR(step.losses[level].item<double>(), commitment(before, greedy, level), 1e-12);
  }
}

TEST(ResidualQuantizeTest, EveryLevelLearnsFromItsOwnTokens) {
  const auto stack = make_stack(), before = copy_of(stack);
  stack.step();
  const Greedy greedy(before, kLevels);
  for (int64_t level = 0; level < kLevels; ++level) {
    expect_taught(stack.state(level), before, greedy, {level});
    for (int64_t code = 0; code < kCodes; ++code) {
      const auto& own = greedy.indices[level];
      EXPECT_EQ(stack.arguments.step_counts[level][0][code].item<int64_t>(),
                std::count(own.begin(), own.end(), code));
    }
    EXPECT_EQ(stack.state(level).rng[1].item<int64_t>(), 1);
  }
}

TEST(ResidualQuantizeTest, SharedCodebookLearnsFromTheTokensOfAllLevels) {
  const auto stack = make_stack(/*shared=*/true), before = copy_of(stack);
  const auto step = stack.step();
  const Greedy greedy(before, kLevels);
  expect_codes(step, greedy);
  expect_taught(stack.state(0), before, greedy, {0, 1, 2});
  EXPECT_EQ(stack.state(0).rng[1].item<int64_t>(), 1);
}

TEST(ResidualQuantizeTest, DroppedLevelsStayAsTheyAre) {
  auto stack = make_stack();
  stack.arguments.codebooks.resize(2);
  const auto before = copy_of(stack);
  const auto step = stack.step();
  expect_codes(step, Greedy(before, 2));
  EXPECT_EQ(step.losses[2].item<double>(), 0);
  EXPECT_TRUE(at::equal(stack.state(2).embed, before.state(2).embed));
  EXPECT_TRUE(at::equal(stack.state(2).cluster_size, before.state(2).cluster_size));
  EXPECT_EQ(stack.arguments.step_counts[2].sum().item<int64_t>(), 0);
}

TEST(ResidualQuantizeTest, DepthOnTheDeviceIsThatNumberOfLevels) {
  auto stack = make_stack(), fewer = copy_of(stack);
  stack.arguments.depth = at::scalar_tensor(2, at::kLong);
  stack.options.learns(false).finishes(false).returns_codes(true);
  fewer.arguments.codebooks.resize(2);
  fewer.options.learns(false).finishes(false);
  const auto step = stack.step(), expected = fewer.step();
  EXPECT_TRUE(at::equal(step.quantized, expected.quantized));
  EXPECT_TRUE(at::equal(step.losses, expected.losses));
  EXPECT_EQ(step.codes[2].abs().sum().item<double>(), 0);
}

/// On several ranks a step that learns nothing does not know whether others had tokens.
TEST(ResidualQuantizeTest, LevelsBeyondADepthOnTheDeviceKeepTheirGenerators) {
  std::vector<at::Tensor> uses, indices, rng;
  for (int64_t level = 0; level < kLevels; ++level) {
    uses.push_back(at::zeros({1, kCodes}, at::kLong));
    indices.push_back(at::zeros({1, kRows}, at::kLong));
    rng.push_back(at::tensor({level, int64_t{5}}));
  }
  F::finish_step_(uses, indices, rng, {}, {}, /*alone=*/false, at::tensor(int64_t{2}));
  for (int64_t level = 0; level < kLevels; ++level) {
    EXPECT_EQ(rng[level][1].item<int64_t>(), level < 2 ? 6 : 5);
  }
}

TEST(ResidualQuantizeTest, MaskedTokensTakeNoPart) {
  auto stack = make_stack();
  std::vector<bool> masked(kRows, false);
  const auto mask = at::ones({kBatch, kTokens}, at::kBool);
  for (const int64_t row : {0, 7, 30, 45}) {
    masked[row] = true;
    mask.view(-1)[row] = false;
    stack.tokens.view({kRows, kDim})[row].zero_();
  }
  stack.arguments.mask = mask;
  const auto before = copy_of(stack);
  const auto step = stack.step();
  const Greedy greedy(before, kLevels);
  expect_codes(step, greedy, masked);
  for (int64_t level = 0; level < kLevels; ++level) {
    EXPECT_NEAR(step.losses[level].item<double>(), commitment(before, greedy, level, masked),
                1e-12);
    EXPECT_EQ(stack.arguments.step_counts[level].sum().item<int64_t>(), kRows - 4);
  }
}

TEST(ResidualQuantizeTest, OutputHasOneEstimatorAndLossesAreBalanced) {
  auto stack = make_stack();
  stack.options.learns(false).finishes(false);
  stack.tokens.requires_grad_();
  const auto step = stack.step();
  const auto of_output =
      torch::autograd::grad({step.quantized.sum()}, {stack.tokens}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(at::equal(of_output, at::ones_like(of_output)));
  const auto of_losses = torch::autograd::grad({step.losses.sum()}, {stack.tokens})[0];
  const Greedy greedy(stack, kLevels);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto found = row_of(of_losses, row);
    for (int64_t d = 0; d < kDim; ++d) {
      double expected = 0;
      for (int64_t level = 0; level < kLevels; ++level) {
        const auto code = row_of(stack.arguments.codebooks[level], greedy.indices[level][row]);
        expected += 2 * (greedy.left[level][row][d] - code[d]) / (kRows * kDim);
      }
      EXPECT_NEAR(found[d], expected / kLevels, 1e-12);
    }
  }
}

TEST(ResidualQuantizeTest, TakesNoTokens) {
  auto stack = make_stack();
  stack.tokens = stack.tokens.slice(1, 0, 0);
  const auto before = copy_of(stack);
  const auto step = stack.step();
  EXPECT_EQ(step.indices.sizes(), at::IntArrayRef({1, 0, kLevels}));
  EXPECT_TRUE(at::equal(step.losses, at::zeros({kLevels}, at::kDouble)));
  EXPECT_TRUE(at::equal(stack.state(0).embed, before.state(0).embed));
  EXPECT_EQ(stack.state(0).rng[1].item<int64_t>(), 0);
}

TEST(ResidualQuantizeTest, RefusesTokensThatHeadsDoNotDivide) {
  auto stack = make_stack();
  stack.options.layout().heads(2);
  expect_throw_with<c10::ValueError>([&] { stack.step(); },
                                     "expected the feature size to be a multiple of 2 heads");
}

}  // namespace
}  // namespace torchvq::residual_quantize_test
