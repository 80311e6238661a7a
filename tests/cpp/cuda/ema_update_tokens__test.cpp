// The learning step of many codebooks for CUDA, emulated, against the CPU's, step after step.
#include <torchvq/ops/ema_update_tokens_.h>

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_ema_update_tokens_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Tensors = std::vector<at::Tensor>;

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const auto& tensor : tensors)
    copies.push_back(
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor));
  return copies;
}

/// Codebooks and the tokens of a step.
struct Stack {
  Tensors sizes, averages, codes, x, indices, mask;
  ops::EmaUpdateOptions options = {.decay = 0.8, .eps = 1e-5};

  /// Codebooks with different numbers of codes and tokens.
  Stack(int64_t heads, int64_t levels, int64_t dim, at::ScalarType state = at::kFloat,
        at::ScalarType tokens = at::kFloat) {
    for (int64_t level = 0; level < levels; ++level) {
      const int64_t size = 9 + level % 3 * 7;
      codes.push_back(at::randn({heads, size, dim}).to(state));
      averages.push_back(codes.back().clone());
      sizes.push_back(at::ones({heads, size}, codes.back().options()));
      draw_tokens(heads, 20 + level, dim, tokens);
    }
  }

  void draw_tokens(int64_t heads, int64_t count, int64_t dim, at::ScalarType type) {
    x.push_back(at::randn({heads, count, dim}).to(type));
    // Few of the codes, so that the others become unused.
    indices.push_back(at::randint(-1, 5, {heads, count}, at::kLong));
  }

  Stack clone() const {
    Stack copy = *this;
    copy.sizes = clones(sizes), copy.averages = clones(averages), copy.codes = clones(codes);
    return copy;
  }
  Tensors step() const {
    return ops::ema_update_tokens_(sizes, averages, codes, x, indices, mask, options);
  }

  void expect_same_state(const Stack& expected) const {
    for (size_t level = 0; level < codes.size(); ++level) {
      expect_same(sizes[level], expected.sizes[level]);
      expect_same(averages[level], expected.averages[level]);
      expect_same(codes[level], expected.codes[level]);
    }
  }
  void expect_cpu_bits(int steps = 3) const {
    const Stack expected = clone(), actual = clone();
    for (int i = 0; i < steps; ++i) {
      const auto order = i % 2 == 0 ? Order::kShuffled : Order::kBackward;
      const auto counts = emulated({.order = order}, [&] { return actual.step(); });
      const auto expected_counts = expected.step();
      for (size_t level = 0; level < counts.size(); ++level)
        expect_same(counts[level], expected_counts[level]);
      actual.expect_same_state(expected);
    }
  }
};

TEST(CudaEmaUpdateTokens, EveryTypeMetricAndOption) {
  at::manual_seed(1);
  for (const auto state : {at::kFloat, at::kDouble}) {
    for (const auto tokens : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const auto metric : {"euclidean", "cosine"}) {
        Stack stack(2, 3, 17, state, tokens);
        stack.options.metric = metric;
        stack.expect_cpu_bits(2);
        stack.options.from_codebook = true;
        stack.options.finish = false;
        stack.expect_cpu_bits(2);
      }
    }
  }
}

TEST(CudaEmaUpdateTokens, MasksAndWeights) {
  at::manual_seed(2);
  Stack stack(2, 3, 5);
  for (const auto& own : stack.indices) stack.mask.push_back(at::rand(own.sizes()).lt(0.5));
  stack.expect_cpu_bits();
  stack.options.weight = at::rand({2, 1});
  stack.expect_cpu_bits();
}

TEST(CudaEmaUpdateTokens, ManyCodebooks) {
  at::manual_seed(3);
  for (const int64_t levels : {1, 16, 17, 35}) Stack(1, levels, 3).expect_cpu_bits(2);
}

TEST(CudaEmaUpdateTokens, CodebooksWithoutTokens) {
  at::manual_seed(4);
  Stack stack(2, 4, 6);
  stack.x[1] = stack.x[1].narrow(1, 0, 0);
  stack.indices[1] = stack.indices[1].narrow(1, 0, 0);
  stack.indices[2].fill_(-1);
  stack.expect_cpu_bits();
  for (size_t level = 0; level < 4; ++level) {
    stack.x[level] = stack.x[level].narrow(1, 0, 0);
    stack.indices[level] = stack.indices[level].narrow(1, 0, 0);
  }
  stack.expect_cpu_bits();
  Stack(0, 2, 4).expect_cpu_bits();
  Stack(2, 0, 4).expect_cpu_bits();
}

TEST(CudaEmaUpdateTokens, NotFiniteAndFarApart) {
  at::manual_seed(5);
  Stack stack(1, 3, 7);
  stack.x[0][0][3][2] = kNan;
  stack.x[1][0][4][0] = -kInfinity;
  stack.x[2].mul_(1e12);
  stack.codes[1][0][2][1] = kNan;
  stack.expect_cpu_bits();
}

TEST(CudaEmaUpdateTokens, OtherStrides) {
  at::manual_seed(6);
  Stack stack(2, 2, 6);
  stack.codes[0] = at::randn({6, 9, 2}).permute({2, 1, 0});
  stack.sizes[1] = at::ones({16, 2}).t();
  stack.x[1] = at::randn({21, 2, 6}).transpose(0, 1);
  stack.expect_cpu_bits();
}

TEST(CudaEmaUpdateTokens, TypesThatDiffer) {
  at::manual_seed(7);
  Stack stack(1, 3, 6);
  stack.x[1] = stack.x[1].to(at::kDouble);
  stack.expect_cpu_bits();
}

TEST(CudaEmaUpdateTokens, ErrorsChangeNothing) {
  at::manual_seed(8);
  const Stack stack(1, 20, 4), before = stack.clone();
  stack.indices[19][0][3] = 99;
  EXPECT_THROW(emulated({}, [&] { return stack.step(); }), c10::Error);
  stack.expect_same_state(before);
}

TEST(CudaEmaUpdateTokens, LaunchesDoNotGrowWithCodebooks) {
  at::manual_seed(9);
  for (const int64_t levels : {1, 16}) {
    const Stack stack(2, levels, 4);
    const auto before = cuda_shim::launches();
    emulated({}, [&] { return stack.step(); });
    EXPECT_EQ(cuda_shim::launches() - before, 1 + 2 + 3);
  }
}

}  // namespace
}  // namespace torchvq::cuda_ema_update_tokens_test
