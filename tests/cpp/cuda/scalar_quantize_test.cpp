// The scalar quantizers for CUDA, emulated, against the CPU's: every bit.
#include <torchvq/ops/latent_quantize.h>
#include <torchvq/ops/residual_scalar_quantize.h>
#include <torchvq/ops/scalar_quantize.h>
#include <torchvq/ops/sign_quantize.h>

#include <limits>
#include <tuple>

#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"
#include "detail/op_handle.h"

namespace torchvq::cuda_scalar_quantize_test {
namespace {

using testing_cuda::emulated;
using testing_cuda::expect_same;
using testing_cuda::kOrders;

constexpr auto kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();
const std::string kBounds[] = {"tanh", "clamp", "symmetric_tanh", "symmetric_clamp"};

/// `call` returns a list of tensors.
template <typename Call>
void expect_cpu_bits(const Call& call) {
  const std::vector<at::Tensor> expected = call();
  for (const auto order : kOrders) {
    const std::vector<at::Tensor> actual = emulated({.order = order}, call);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) expect_same(actual[i], expected[i]);
  }
}

int64_t launches_of(const std::function<void()>& call) {
  const auto before = cuda_shim::launches();
  emulated({}, [&] {
    call();
    return 0;
  });
  return cuda_shim::launches() - before;
}

std::vector<at::Tensor> quantized(const at::Tensor& x, at::IntArrayRef levels,
                                  const std::string& bound) {
  const auto [codes, indices] = ops::scalar_quantize(x, levels, bound);
  return {codes, indices};
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef levels,
                    std::string_view bound) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_quantize_backward");
  return op.call(grad, x, levels, bound);
}

at::Tensor walk_backward(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef levels,
                         const at::Tensor& scales, std::string_view bound) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                               const at::Tensor&, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::residual_scalar_quantize_backward");
  return op.call(grad, x, levels, scales, bound);
}

TEST(CudaScalarQuantize, EveryTypeBoundAndShape) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto& bound : kBounds) {
      const auto x = at::randn({3, 50, 5}).mul(2).to(dtype);
      expect_cpu_bits([&] { return quantized(x, {8, 5, 3, 4, 16}, bound); });
      expect_cpu_bits([&] { return quantized(x.narrow(-1, 0, 1), {7}, bound); });
      expect_cpu_bits([&] { return quantized(x.narrow(1, 0, 0), {8, 5, 3, 4, 16}, bound); });
    }
  }
}

TEST(CudaScalarQuantize, ManyFeatures) {
  at::manual_seed(2);
  const std::vector<int64_t> levels(39, 3);
  const auto x = at::randn({40, 39});
  expect_cpu_bits([&] { return quantized(x, levels, "tanh"); });
  expect_cpu_bits([&] { return quantized(x.t().contiguous().t(), levels, "symmetric_tanh"); });
  const std::vector<int64_t> pairs(62, 2);
  const auto wide = at::randn({9, 62});
  expect_cpu_bits([&] { return quantized(wide, pairs, "symmetric_clamp"); });
}

TEST(CudaScalarQuantize, WhereLevelsChange) {
  // Inputs near the thresholds of levels: every float within some steps.
  for (const auto& bound : kBounds) {
    const auto fine = at::linspace(-3, 3, 4001);
    expect_cpu_bits([&] { return quantized(fine.unsqueeze(-1), {9}, bound); });
    const auto near = at::linspace(-1e-6, 1e-6, 1001);
    expect_cpu_bits([&] { return quantized(near.unsqueeze(-1), {8}, bound); });
    expect_cpu_bits([&] { return quantized(near.unsqueeze(-1), {4}, bound); });
  }
}

TEST(CudaScalarQuantize, RowsThatAreNotFinite) {
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    auto x = at::randn({300, 3}).to(dtype);
    x[0][1] = kNaN;
    x[100][0] = kInfinity;
    x[299][2] = -kInfinity;
    x[7].fill_(1e30);
    expect_cpu_bits([&] { return quantized(x, {4, 5, 6}, "tanh"); });
  }
}

TEST(CudaScalarQuantize, MoreLevelsThanALaunchCarries) {
  at::manual_seed(4);
  const auto x = at::randn({30, 2});
  EXPECT_EQ(launches_of([&] { quantized(x, {385, 3}, "symmetric_tanh"); }), 0);
  EXPECT_EQ(launches_of([&] { quantized(x, {383, 3}, "symmetric_tanh"); }), 1);
  expect_cpu_bits([&] { return quantized(x, {385, 3}, "symmetric_tanh"); });
  expect_cpu_bits([&] { return quantized(x, {383, 3}, "symmetric_tanh"); });
  expect_cpu_bits([&] { return quantized(x.to(at::kDouble), {1000, 1000}, "clamp"); });
}

TEST(CudaScalarQuantize, Gradient) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto& bound : kBounds) {
      auto x = at::randn({60, 3}).mul(3).to(dtype);
      x[0][0] = kNaN;
      x[1][1] = kInfinity;
      const auto grad = at::randn({60, 3}).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
      expect_cpu_bits([&] { return std::vector{backward(grad, x, {8, 5, 6}, bound)}; });
    }
  }
  const auto x = at::randn({4, 2});
  EXPECT_EQ(launches_of([&] { backward(x, x, {3, 3}, "tanh"); }), 1);
  const auto wide = x.to(at::kDouble);
  EXPECT_EQ(launches_of([&] { backward(wide, wide, {3, 3}, "tanh"); }), 0);
}

at::Tensor scales_of(int64_t quantizers, int64_t dim) {
  return at::rand({quantizers, dim}).add(0.2).div(at::linspace(1, 9, quantizers).unsqueeze(-1));
}

TEST(CudaResidualScalarQuantize, EveryTypeAndBound) {
  at::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::string bound : {"symmetric_tanh", "symmetric_clamp"}) {
      auto x = at::randn({2, 70, 3}).to(dtype);
      x[0][3][1] = kNaN;
      x[1][9][0] = kInfinity;
      x[1][10][0] = dtype == at::kHalf ? 6e4 : 3e38;
      const auto scales = scales_of(4, 3), grad = at::randn({2, 70, 3});
      const std::vector<int64_t> levels{5, 9, 4};
      expect_cpu_bits([&] {
        const auto [total, indices] = ops::residual_scalar_quantize(x, levels, scales, bound);
        return std::vector{total, indices};
      });
      expect_cpu_bits(
          [&] { return std::vector{walk_backward(grad.to(x), x, levels, scales, bound)}; });
    }
  }
}

TEST(CudaResidualScalarQuantize, WhatTakesTheAnyDeviceRoad) {
  const auto x = at::randn({4, 2}), scales = scales_of(2, 2);
  const auto run = [&](const at::Tensor& tokens, at::IntArrayRef levels) {
    return launches_of(
        [&] { ops::residual_scalar_quantize(tokens, levels, scales, "symmetric_tanh"); });
  };
  EXPECT_EQ(run(x, {5, 5}), 1);
  EXPECT_EQ(launches_of([&] { walk_backward(x, x, {5, 5}, scales, "symmetric_tanh"); }), 1);
  const auto wide = x.to(at::kDouble);
  EXPECT_EQ(launches_of([&] { walk_backward(wide, wide, {5, 5}, scales, "symmetric_tanh"); }),
            // The kernel of scalar_quantize quantizes the levels between the slopes.
            2);
}

TEST(CudaSignQuantize, EveryTypeAndWidth) {
  at::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t bits : {1, 5, 18, 62}) {
      auto x = at::randn({2, 30, bits}).to(dtype);
      x[0][0].zero_();
      x[0][1].fill_(-0.0);
      x[1][2][0] = kNaN;
      x[1][3][bits - 1] = kInfinity;
      const double scale = 0.1;
      expect_cpu_bits([&] {
        const auto [codes, indices] = ops::sign_quantize(x, scale);
        return std::vector{codes, indices};
      });
      auto indices = ops::sign_quantize(x, scale).second;
      indices[0][5] = -1;
      for (const auto wanted : {at::kFloat, at::kDouble}) {
        expect_cpu_bits(
            [&] { return std::vector{ops::sign_decode(indices, bits, scale, wanted)}; });
      }
    }
  }
  expect_cpu_bits([&] {
    const auto [codes, indices] = ops::sign_quantize(at::zeros({0, 7}));
    return std::vector{codes, indices, ops::sign_decode(indices, 7)};
  });
}

struct Latents {
  at::Tensor x, values;
  std::vector<int64_t> levels;
  std::optional<at::Tensor> mask;

  Latents(int64_t tokens, std::vector<int64_t> levels_, at::ScalarType dtype)
      : levels(std::move(levels_)) {
    x = at::randn({tokens, static_cast<int64_t>(levels.size())}).to(dtype);
    int64_t count = 0;
    for (const auto level : levels) count += level;
    values = at::randn({count});
  }

  std::vector<at::Tensor> all() const {
    const auto found = ops::latent_quantize(x, values, levels, 0.3, 0.7, mask);
    using Signature = std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
        const at::Tensor&, at::IntArrayRef, double, double);
    static auto op = detail::op_handle<Signature>("torchvq::latent_quantize_backward");
    const auto grad = at::linspace(-1, 1, x.numel()).view(x.sizes()).to(found.codes);
    const auto [grad_x, grad_values] = op.call(grad, at::full({}, 0.8, found.loss.options()), x,
                                               found.codes, found.indices, levels, 0.3, 0.7);
    return {found.codes, found.indices, found.loss, grad_x, grad_values};
  }
};

TEST(CudaLatentQuantize, EveryTypeAndShape) {
  at::manual_seed(8);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t tokens : {0, 1, 100, 2500}) {
      const Latents latents(tokens, {5, 2, 9}, dtype);
      expect_cpu_bits([&] { return latents.all(); });
    }
  }
}

TEST(CudaLatentQuantize, TiesMasksAndRowsThatAreNotFinite) {
  at::manual_seed(9);
  Latents latents(1100, {4, 3}, at::kFloat);
  latents.values.copy_(at::tensor({1.0F, -1.0F, 1.0F, 2.0F, 0.5F, 0.5F, -0.5F}));
  latents.x[0].zero_();
  expect_cpu_bits([&] { return latents.all(); });
  latents.mask = at::rand({1100}).lt(0.6);
  expect_cpu_bits([&] { return latents.all(); });
  latents.x[3][1] = kNaN;
  latents.x[1050][0] = -kInfinity;
  expect_cpu_bits([&] { return latents.all(); });
  latents.mask = at::zeros({1100}, at::kBool);
  expect_cpu_bits([&] { return latents.all(); });
}

TEST(CudaLatentQuantize, MoreValuesThanTheKernelTakes) {
  at::manual_seed(10);
  const Latents most(3, {4094, 2}, at::kFloat), more(3, {4095, 2}, at::kFloat);
  const auto run = [](const Latents& latents) {
    return launches_of([&] { ops::latent_quantize(latents.x, latents.values, latents.levels); });
  };
  EXPECT_GT(run(most), 0);
  EXPECT_EQ(run(more), 0);
}

}  // namespace
}  // namespace torchvq::cuda_scalar_quantize_test
