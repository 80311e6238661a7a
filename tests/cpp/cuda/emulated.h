// Runs operators on the emulation of CUDA, and compares results.
#pragma once

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include "emulation.h"

namespace torchvq::testing_cuda {

/// The result of `call` with emulated kernels instead of the CPU's.
template <typename Call>
auto emulated(const cuda_shim::Settings& settings, const Call& call) {
  const cuda_shim::Emulation emulation;
  const auto before = std::exchange(cuda_shim::settings(), settings);
  const auto restore =
      std::shared_ptr<void>(nullptr, [&](void*) { cuda_shim::settings() = before; });
  return call();
}

/// Equal bits, and NaN in the same places.
inline void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  const auto nothing = [](const at::Tensor& x) {
    return x.is_floating_point() ? x.isnan() : at::zeros_like(x, at::kBool);
  };
  EXPECT_TRUE(at::equal(nothing(actual), nothing(expected)));
  EXPECT_TRUE(
      at::equal(actual.masked_fill(nothing(actual), 0), expected.masked_fill(nothing(expected), 0)))
      << "in " << actual.ne(expected).sum().item<int64_t>() << " of " << actual.numel();
}

/// Orders of the threads in which every kernel must give the same bits.
constexpr cuda_shim::Order kOrders[] = {cuda_shim::Order::kForward, cuda_shim::Order::kBackward,
                                        cuda_shim::Order::kShuffled};

/// The emulation of a call that returns a tensor has the bits of the CPU.
template <typename Call>
void expect_cpu_bits(const Call& call) {
  const auto expected = call();
  for (const auto order : kOrders) expect_same(emulated({.order = order}, call), expected);
}

}  // namespace torchvq::testing_cuda
