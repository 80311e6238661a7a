// Dead codes for CUDA, emulated, against the CPU's: candidates, state and number, every bit.
#include <torchvq/ops/dead_code_candidates.h>
#include <torchvq/ops/replace_dead_codes_.h>
#include <torchvq/ops/replace_with_candidates_.h>

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_dead_codes_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kNoKey = std::numeric_limits<int64_t>::max();

at::Tensor example_rng() { return at::tensor({int64_t{11}, int64_t{5}}); }

struct State {
  at::Tensor embed, embed_avg, cluster_size, counts;

  /// Nearly half of the codes is dead; others are small, but have tokens.
  State(int64_t heads, int64_t size, int64_t dim, at::ScalarType dtype = at::kFloat) {
    embed = at::randn({heads, size, dim}).to(dtype);
    embed_avg = at::randn({heads, size, dim}).to(dtype);
    cluster_size = at::rand({heads, size}).to(dtype) * 3;
    counts = at::randint(0, 3, {heads, size}, at::kLong).sub(1).clamp_min(0);
  }
  State clone() const {
    auto copy = *this;
    copy.embed = embed.clone(), copy.embed_avg = embed_avg.clone();
    copy.cluster_size = cluster_size.clone();
    return copy;
  }
  void all_dead() {
    cluster_size.mul_(0.1);
    counts.zero_();
  }
};

void expect_same_state(const State& actual, const State& expected) {
  expect_same(actual.embed, expected.embed);
  expect_same(actual.embed_avg, expected.embed_avg);
  expect_same(actual.cluster_size, expected.cluster_size);
}

/// Runs `replace(state)` on the CPU, and emulated in two orders of threads.
template <typename Replace>
at::Tensor expect_cpu_state(const State& start, const Replace& replace) {
  auto expected = start.clone();
  const at::Tensor replaced = replace(expected);
  for (const auto order : {Order::kForward, Order::kShuffled}) {
    auto actual = start.clone();
    expect_same(emulated({.order = order}, [&] { return replace(actual); }), replaced);
    expect_same_state(actual, expected);
  }
  return replaced;
}

/// Returns the number of replaced codes.
int64_t expect_cpu_step(const State& start, const at::Tensor& x,
                        const ops::DeadCodeOptions& options = {},
                        const std::optional<at::Tensor>& mask = std::nullopt) {
  return expect_cpu_state(start,
                          [&](State& state) {
                            return ops::replace_dead_codes_(state.embed, state.embed_avg,
                                                            state.cluster_size, x, state.counts,
                                                            example_rng(), mask, options);
                          })
      .sum()
      .item<int64_t>();
}

TEST(CudaDeadCodes, TypesMetricsAndWidths) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto tokens : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const auto metric : {"euclidean", "cosine"}) {
        for (const int64_t dim : {1, 5, 70}) {
          const State state(2, 21, dim, dtype);
          const auto x = at::randn({2, 40, dim}).to(tokens);
          EXPECT_GT(expect_cpu_step(state, x, {.metric = metric}), 0);
        }
      }
    }
  }
}

TEST(CudaDeadCodes, ManyCodesManyTokensLongRows) {
  at::manual_seed(2);
  EXPECT_GT(expect_cpu_step(State(1, 1100, 2), at::randn({1, 900, 2})), 0);
  EXPECT_GT(expect_cpu_step(State(1, 9, 512), at::randn({1, 20, 512})), 0);
  State few(1, 3, 2), one(1, 1, 4);
  few.all_dead(), one.all_dead();
  EXPECT_EQ(expect_cpu_step(few, at::randn({1, 5000, 2})), 3);
  EXPECT_EQ(expect_cpu_step(one, at::randn({1, 300, 4})), 1);
}

TEST(CudaDeadCodes, FewerCandidatesThanDeadCodes) {
  at::manual_seed(3);
  for (const int64_t tokens : {0, 1, 2, 7, 30}) {
    State state(3, 30, 4);
    state.all_dead();
    // Of codes of equal size, the first are replaced.
    state.cluster_size[0].fill_(0.25);
    state.cluster_size[1].copy_(at::randint(0, 3, {30}).to(at::kFloat) * 0.1);
    EXPECT_EQ(expect_cpu_step(state, at::randn({3, tokens, 4})), 3 * tokens);
  }
}

TEST(CudaDeadCodes, EqualTokensAndLiveCodesAreNoCandidates) {
  at::manual_seed(4);
  State state(2, 12, 3);
  auto x = at::randint(-1, 2, {2, 60, 3}).to(at::kFloat);
  x[0].mul_(-1);  // -0 and +0 are equal tokens
  state.embed.slice(1, 0, 8).copy_(x.slice(1, 0, 8));
  state.counts.slice(1, 0, 4).fill_(1);
  expect_cpu_step(state, x);
  state.all_dead();
  expect_cpu_step(state, x);
  expect_cpu_step(state, at::zeros({2, 9, 3}), {.metric = "cosine"});
  expect_cpu_step(state, -at::zeros({2, 9, 3}));
  EXPECT_EQ(expect_cpu_step(state, at::ones({2, 500, 3})), 2);
}

TEST(CudaDeadCodes, TokensThatAreNotFiniteAndMasks) {
  at::manual_seed(5);
  State state(2, 10, 4);
  state.all_dead();
  auto x = at::randn({2, 25, 4});
  x[0][3][1] = kNaN, x[0][4][3] = kInfinity, x[1][5] = -kInfinity;
  for (const auto metric : {"euclidean", "cosine"}) {
    const ops::DeadCodeOptions options = {.metric = metric};
    expect_cpu_step(state, x, options);
    expect_cpu_step(state, x, options, at::rand({2, 25}).lt(0.3));
    expect_cpu_step(state, x, options, at::rand({25}).lt(0.5));
    EXPECT_EQ(expect_cpu_step(state, x, options, at::zeros({25}, at::kBool)), 0);
    EXPECT_EQ(expect_cpu_step(state, at::full_like(x, kNaN), options), 0);
  }
}

TEST(CudaDeadCodes, Thresholds) {
  at::manual_seed(6);
  const State state(2, 40, 3);
  const auto x = at::randn({2, 50, 3});
  for (const double fraction : {0.0, 0.1, 0.9, 3.0}) {
    for (const double threshold : {0.0, 0.5, 100.0}) {
      for (const double reset : {0.0, 2.0}) {
        expect_cpu_step(
            state, x,
            {.threshold = threshold, .threshold_fraction = fraction, .reset_cluster_size = reset});
      }
    }
  }
  EXPECT_EQ(expect_cpu_step(state, x, {.threshold = 0}), 0);
}

TEST(CudaDeadCodes, ExtremesOfTheState) {
  at::manual_seed(7);
  for (const double size : {kNaN, kInfinity, -kInfinity, 3e38}) {
    State state(2, 8, 4);
    state.cluster_size[0][2] = size;
    state.embed[0][1] = kNaN;
    state.embed[1][1] = kInfinity;
    expect_cpu_step(state, at::randn({2, 9, 4}));
    expect_cpu_step(state, at::randn({2, 9, 4}), {.threshold_fraction = 0.5});
  }
  // Tokens beyond the range of the state are clamped to it.
  State state(1, 8, 4);
  state.all_dead();
  expect_cpu_step(state, at::randn({1, 9, 4}).to(at::kDouble) * 1e300);
  expect_cpu_step(state, at::randn({1, 9, 4}) * 1e38, {.reset_cluster_size = 1e18});
  expect_cpu_step(state, at::randn({1, 9, 4}).to(at::kDouble) * 1e200, {.metric = "cosine"});
  expect_cpu_step(state, at::randn({1, 9, 4}) * 1e-42);
}

TEST(CudaDeadCodes, StridedStateAndTokens) {
  at::manual_seed(8);
  State state(2, 14, 6);
  state.all_dead();
  auto strided = state.clone();
  const auto turned = [](const at::Tensor& x) {
    return x.transpose(0, -1).clone().transpose(0, -1);
  };
  strided.embed = turned(state.embed), strided.embed_avg = turned(state.embed_avg);
  strided.cluster_size = turned(state.cluster_size);
  const auto x = at::randn({6, 2, 10}).permute({1, 2, 0});
  const auto step = [&](State& one) {
    return ops::replace_dead_codes_(one.embed, one.embed_avg, one.cluster_size, x, one.counts,
                                    example_rng());
  };
  const auto replaced = step(state);
  expect_same(emulated({}, [&] { return step(strided); }), replaced);
  expect_same_state(strided, state);
}

TEST(CudaDeadCodes, CandidatesOfTheirOwn) {
  at::manual_seed(9);
  for (const auto metric : {"euclidean", "cosine"}) {
    for (const int64_t tokens : {0, 1, 33, 400}) {
      for (const int64_t count : {1, 32, 100}) {
        auto x = at::randn({2, tokens, 5});
        if (tokens > 1)
          x[0][1].zero_(), x[1].slice(0, 1, 9).copy_(x[1][0].neg()), x[0][0][0] = kNaN;
        const auto call = [&] {
          return ops::dead_code_candidates(x, example_rng(), count, std::nullopt, metric);
        };
        const auto [keys, rows] = call();
        const auto [own_keys, own_rows] = emulated({.order = Order::kShuffled}, call);
        expect_same(own_keys, keys);
        expect_same(own_rows, rows);
        EXPECT_FALSE(own_rows.eq(0).logical_and(own_rows.signbit()).any().item<bool>());
      }
    }
  }
}

struct Offers {
  at::Tensor keys, rows;
};

int64_t expect_cpu_offers(const State& start, const Offers& offers) {
  return expect_cpu_state(start,
                          [&](State& state) {
                            return ops::replace_with_candidates_(
                                state.embed, state.embed_avg, state.cluster_size, offers.keys,
                                offers.rows, state.counts, example_rng());
                          })
      .sum()
      .item<int64_t>();
}

TEST(CudaDeadCodes, CandidatesOfSeveralRanks) {
  at::manual_seed(10);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    State state(2, 16, 4);
    state.all_dead();
    state.counts.slice(1, 0, 5).fill_(1);
    auto x = at::randn({2, 30, 4}).to(dtype);
    x.slice(1, 0, 3).copy_(state.embed.slice(1, 0, 3));
    std::vector<at::Tensor> keys, rows;
    for (const auto& [from, to] : {std::pair{0, 12}, {8, 20}, {20, 22}}) {
      const auto own = ops::dead_code_candidates(x.slice(1, from, to), example_rng(), 16);
      keys.push_back(own.first), rows.push_back(own.second);
    }
    EXPECT_EQ(expect_cpu_offers(state, {at::cat(keys, 1), at::cat(rows, 1)}), 22);
  }
}

// Keys of tokens are random; these are not, so they share bins and slots.
TEST(CudaDeadCodes, KeysOfAnyKind) {
  at::manual_seed(11);
  State state(1, 70, 3);
  state.all_dead();
  const auto rows = at::randn({1, 200, 3});
  const auto order = at::randperm(200).unsqueeze(0);
  const std::vector<at::Tensor> kinds = {order,          order * (int64_t{1} << 40),
                                         order - 100,    order.remainder(9),
                                         kNoKey - order, at::full({1, 200}, kNoKey)};
  const std::vector<int64_t> expected = {70, 70, 70, 9, 70, 0};
  for (size_t i = 0; i < kinds.size(); ++i)
    EXPECT_EQ(expect_cpu_offers(state, {kinds[i], rows}), expected[i]);
  EXPECT_EQ(expect_cpu_offers(state, {order.slice(1, 0, 1), rows.slice(1, 0, 1)}), 1);
  EXPECT_EQ(expect_cpu_offers(state, {order, -at::zeros({1, 200, 3})}), 70);
}

/// Several codebooks, and the tokens of a step.
struct Codebooks {
  std::vector<State> states;
  std::vector<at::Tensor> x, mask;
  std::vector<at::Tensor> keys = {};  // if any, x are candidates with these keys
  ops::DeadCodeOptions options = {};

  /// Codebooks of several sizes with several numbers of tokens, some of them without dead codes or
  /// without tokens.
  explicit Codebooks(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      states.emplace_back(1 + i % 2, 9 + i % 3 * 7, 5, at::kFloat);
      x.push_back(at::randn({1 + i % 2, i % 6 == 3 ? 0 : 4 + i % 5 * 9, 5}));
      if (i % 4 == 0) states.back().all_dead();
      if (i % 4 == 1) states.back().counts.fill_(1);
    }
  }

  Codebooks clone() const {
    Codebooks copy = *this;
    for (auto& state : copy.states) state = state.clone();
    return copy;
  }
  std::vector<at::Tensor> all(at::Tensor State::* member) const {
    std::vector<at::Tensor> found;
    for (const auto& state : states) found.push_back(state.*member);
    return found;
  }
  at::Tensor step() const {
    const std::vector<at::Tensor> rng(states.size(), example_rng());
    if (!keys.empty()) {
      return ops::replace_with_candidates_(all(&State::embed), all(&State::embed_avg),
                                           all(&State::cluster_size), keys, x, all(&State::counts),
                                           rng, options);
    }
    return ops::replace_dead_codes_(all(&State::embed), all(&State::embed_avg),
                                    all(&State::cluster_size), x, all(&State::counts), rng, mask,
                                    options);
  }
  /// Returns the number of replaced codes.
  int64_t expect_cpu_bits() const {
    const auto expected = clone();
    const auto replaced = expected.step();
    for (const auto order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
      const auto actual = clone();
      expect_same(emulated({.order = order}, [&] { return actual.step(); }), replaced);
      for (size_t i = 0; i < states.size(); ++i)
        expect_same_state(actual.states[i], expected.states[i]);
    }
    return replaced.sum().item<int64_t>();
  }
};

TEST(CudaDeadCodes, ManyCodebooks) {
  at::manual_seed(12);
  for (const int64_t count : {1, 2, 16, 17, 35}) EXPECT_GT(Codebooks(count).expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, CodebooksWithMasksAndMetrics) {
  at::manual_seed(13);
  Codebooks codebooks(7);
  for (const auto& own : codebooks.x)
    codebooks.mask.push_back(at::rand({own.size(0), own.size(1)}).lt(0.6));
  EXPECT_GT(codebooks.expect_cpu_bits(), 0);
  codebooks.mask[4] = at::zeros({codebooks.x[4].size(1)}, at::kBool);
  codebooks.options.metric = "cosine";
  EXPECT_GT(codebooks.expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, NoneOfTheCodebooksHasDeadCodesOrTokens) {
  at::manual_seed(14);
  Codebooks codebooks(5);
  codebooks.options.threshold = 0;
  EXPECT_EQ(codebooks.expect_cpu_bits(), 0);
  codebooks.options.threshold = 2;
  for (auto& own : codebooks.x) own = own.narrow(1, 0, 0);
  EXPECT_EQ(codebooks.expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, CodebooksAndTokensOfSeveralTypes) {
  at::manual_seed(15);
  Codebooks codebooks(6);
  codebooks.states[1] = State(2, 11, 5, at::kDouble);
  codebooks.states[2] = State(1, 12, 5, at::kDouble);
  codebooks.x[4] = codebooks.x[4].to(at::kHalf);
  codebooks.x[5] = codebooks.x[5].to(at::kDouble);
  EXPECT_GT(codebooks.expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, CandidatesOfSeveralCodebooks) {
  at::manual_seed(20);
  for (const int64_t count : {2, 18}) {
    Codebooks codebooks(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto tokens = at::randn({1 + i % 2, 20, 5}).to(i % 7 == 5 ? at::kDouble : at::kFloat);
      std::tie(codebooks.keys.emplace_back(), codebooks.x[i]) =
          ops::dead_code_candidates(tokens, example_rng(), 1 + i % 6);
    }
    EXPECT_GT(codebooks.expect_cpu_bits(), 0);
  }
}

TEST(CudaDeadCodes, OneOfSeveralCodebooksIsStrided) {
  at::manual_seed(16);
  Codebooks codebooks(3);
  auto& state = codebooks.states[2];
  for (auto* tensor : {&state.embed, &state.embed_avg, &state.cluster_size})
    *tensor = tensor->transpose(0, -1).clone().transpose(0, -1);
  const Codebooks expected = codebooks.clone();
  expect_same(emulated({}, [&] { return codebooks.step(); }), expected.step());
  expect_same_state(state, expected.states[2]);
}

TEST(CudaDeadCodes, CodesInUseOnRequest) {
  at::manual_seed(18);
  Codebooks codebooks(4);
  for (auto& state : codebooks.states) state.counts.fill_(2);
  EXPECT_EQ(codebooks.expect_cpu_bits(), 0);
  codebooks.options.replace_used = true;
  EXPECT_GT(codebooks.expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, AtMostSoManyForEachToken) {
  at::manual_seed(20);
  State state(2, 40, 3);
  state.all_dead();
  state.counts[0][3] = 5, state.counts[1][7] = 60;
  const auto x = at::randn({2, 50, 3});
  for (const auto& [most, replaced] : {std::pair{0.5, 3 + 30}, {0.01, 1 + 1}, {0.0, 0}, {1e18, 78}})
    EXPECT_EQ(expect_cpu_step(state, x, {.most_per_token = most}), replaced);
  for (const int64_t counts : {0, -5}) {
    state.counts.fill_(counts);
    EXPECT_EQ(expect_cpu_step(state, x, {.replace_used = true, .most_per_token = 0.5}), 0);
  }
  state.counts.zero_();
  EXPECT_EQ(expect_cpu_step(state, x), 80);
  Codebooks codebooks(17);
  codebooks.options.most_per_token = 0.3;
  EXPECT_GT(codebooks.expect_cpu_bits(), 0);
}

TEST(CudaDeadCodes, LaunchesDoNotGrowWithCodebooks) {
  at::manual_seed(19);
  for (const auto& [count, launches] : {std::pair{1, 9}, {16, 9}, {17, 18}}) {
    const Codebooks codebooks(count);
    const auto before = cuda_shim::launches();
    emulated({}, [&] { return codebooks.step(); });
    EXPECT_EQ(cuda_shim::launches() - before, launches);
  }
}

}  // namespace
}  // namespace torchvq::cuda_dead_codes_test
