// The emulation itself: the errors that it must detect, and the results of its tensor core.
#define TORCHVQ_CUDA_SHIM 1  // this file needs the kernels' side of the emulation
#include "kernels/cuda/cuda.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace torchvq::cuda_shim_test {
namespace {

using namespace kernels::emulated;
using cuda_shim::Accumulation;
using cuda_shim::Order;
using cuda_shim::settings;

std::string error_of(Error error) { return error ? error : ""; }

void neighbours(int* out) {
  auto* shared = shared_memory<int>();
  shared[threadIdx.x] = static_cast<int>(threadIdx.x) * 10;
  __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

void neighbours_without_barrier(int* out) {
  auto* shared = shared_memory<int>();
  shared[threadIdx.x] = static_cast<int>(threadIdx.x) * 10;
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

TEST(CudaShim, BarriersAndTheirAbsence) {
  constexpr int kThreads = 100;
  std::vector<int> out(kThreads), expected(kThreads);
  for (int i = 0; i < kThreads; ++i) expected[i] = (i + 1) % kThreads * 10;
  for (const auto order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    settings().order = order;
    EXPECT_EQ(error_of(launch(neighbours, {}, 1, kThreads, sizeof(int) * kThreads, out.data())),
              "");
    EXPECT_EQ(out, expected);
  }
  settings() = {};
  EXPECT_EQ(error_of(launch(neighbours_without_barrier, {}, 1, kThreads, sizeof(int) * kThreads,
                            out.data())),
            "");
  EXPECT_NE(out, expected);
}

void missed_barrier(int*) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

TEST(CudaShim, BarrierThatSomeThreadsMiss) {
  int nothing = 0;
  EXPECT_NE(error_of(launch(missed_barrier, {}, 1, 64, 0, &nothing)), "");
}

void copy_to_shared(const float* from, float* out, bool waits) {
  auto* shared = shared_memory<float>();
  copy_async_16(shared + threadIdx.x * 4, from + threadIdx.x * 4);
  kernels::emulated::commit_copies();
  if (waits) wait_for_copies<0>();
  __syncthreads();
  out[threadIdx.x] = shared[127 - threadIdx.x];
  __syncthreads();
  if (!waits) wait_for_copies<0>();
}

void copy_without_wait(const float* from, float* out) {
  copy_async_16(shared_memory<float>(), from);
  out[0] = shared_memory<float>()[0];
}

TEST(CudaShim, AsynchronousCopies) {
  alignas(16) float from[128];
  float out[32];
  for (int i = 0; i < 128; ++i) from[i] = static_cast<float>(i);
  EXPECT_EQ(error_of(launch(copy_to_shared, {}, 1, 32, 512, from, out, true)), "");
  EXPECT_EQ(out[3], 124);
  EXPECT_EQ(error_of(launch(copy_to_shared, {}, 1, 32, 512, from, out, false)), "");
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_NE(error_of(launch(copy_without_wait, {}, 1, 1, 16, from, out)), "");
}

void reduce(int64_t* out) {
  const auto lane = static_cast<int64_t>(lane_of_warp());
  out[threadIdx.x] = sum_of_warp(lane) * 1000 + largest_of_warp(lane);
  if (__ballot_sync(kWholeWarp, lane % 3 == 0) != 0x49249249u) out[threadIdx.x] = -1;
  if (__shfl_sync(kWholeWarp, lane, 5) != 5) out[threadIdx.x] = -2;
}

TEST(CudaShim, CollectivesOfAWarp) {
  std::vector<int64_t> out(64);
  settings().order = Order::kShuffled;
  EXPECT_EQ(error_of(launch(reduce, {}, 1, 64, 0, out.data())), "");
  settings() = {};
  EXPECT_EQ(out, std::vector<int64_t>(64, 496031));
}

TEST(CudaShim, HalfPrecision) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_half(value), half);
    // The midpoint of two neighbours rounds to the even one.
    const float next = half_to_float(static_cast<uint16_t>(half + 1));
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    ASSERT_EQ(float_to_half((value + next) / 2) % 2, 0) << value;
  }
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
}

struct Products {
  uint16_t rows[16][16], columns[8][16];
  float sums[16][8];
};

/// One tile by the instructions, fragments loaded by hand and by ldmatrix.
void multiply_tile(Products* products) {
  auto* shared = shared_memory<uint16_t>();
  const int lane = lane_of_warp(), group = lane / 4, pair = lane % 4 * 2;
  for (int i = lane; i < 256; i += 32) shared[i] = products->rows[i / 16][i % 16];
  __syncthreads();
  uint32_t a[4], b[2];
  load_matrices(a, shared + lane % 16 * 16 + lane / 16 * 8);
  for (int half = 0; half < 2; ++half)
    std::memcpy(&b[half], &products->columns[group][half * 8 + pair], 4);
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = products->sums[group + i / 2 * 8][pair + i % 2];
  kernels::emulated::multiply_add(sum, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) products->sums[group + i / 2 * 8][pair + i % 2] = sum[i];
}

TEST(CudaShim, ProductsOfTheTensorCore) {
  Products given;
  for (int i = 0; i < 256; ++i) given.rows[i / 16][i % 16] = float_to_half(std::sin(i * 1.7f));
  for (int i = 0; i < 128; ++i) given.columns[i / 16][i % 16] = float_to_half(std::cos(i * 2.3f));
  for (int i = 0; i < 128; ++i) given.sums[i / 8][i % 8] = std::sin(i * 0.9f) * 3;
  for (const auto accumulation :
       {Accumulation::kNearest, Accumulation::kTruncate, Accumulation::kWorst}) {
    settings().accumulation = accumulation;
    Products found = given;
    ASSERT_EQ(error_of(launch(multiply_tile, {}, 1, 32, 512, &found)), "");
    double largest_error = 0;
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 8; ++c) {
        double exact = given.sums[r][c];
        for (int k = 0; k < 16; ++k)
          exact += static_cast<double>(half_to_float(given.rows[r][k])) *
                   half_to_float(given.columns[c][k]);
        largest_error = std::max(largest_error, std::abs(found.sums[r][c] - exact));
      }
    }
    const double last_place = 0x1p-20;  // of 24 bits, for numbers below 16
    EXPECT_LE(largest_error,
              accumulation == Accumulation::kNearest ? last_place / 2 : 18 * last_place);
    if (accumulation == Accumulation::kWorst) {
      EXPECT_GT(largest_error, 2 * last_place);
    }
  }
  settings() = {};
}

}  // namespace
}  // namespace torchvq::cuda_shim_test
