// Exponents for fixed-point sums: the smallest e with |v| <= 2^e, and exact powers of two. Both are
// taken from the bits of a float64, so every device and library gives the same result. Torch-free.
#pragma once

#include <bit>
#include <cstdint>

namespace torchvq::kernels {

/// Exponents are clamped to this range, in which 2^(30 - e) and its inverse are normal float64
/// numbers.
constexpr int32_t kMinExponent = -960;
constexpr int32_t kMaxExponent = 990;

/// An element of magnitude 2^e becomes the integer 2^30.
constexpr int32_t kUnitBits = 30;

/// Tokens may exceed the exponent of their code by this much before the exponent is raised.
constexpr int32_t kHeadroomBits = 8;

/// Not std::clamp, whose references to these constants have no address on a GPU: nvcc compiles them to a trap.
constexpr int32_t clamp_exponent(int32_t exponent) {
  if (exponent < kMinExponent) return kMinExponent;
  return exponent > kMaxExponent ? kMaxExponent : exponent;
}

/// Smallest e with magnitude <= 2^e, clamped; kMinExponent for 0. `magnitude` is finite and >= 0.
constexpr int32_t exponent_of(double magnitude) {
  const auto bits = std::bit_cast<uint64_t>(magnitude);
  const auto above = (bits & ((uint64_t{1} << 52) - 1)) != 0;
  return clamp_exponent(static_cast<int32_t>(bits >> 52) - 1023 + (above ? 1 : 0));
}

/// 2^exponent for exponents of normal float64 numbers.
constexpr double power_of_two(int32_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// Tokens with a larger element, which only float64 has, are left out of sums like infinite ones: their
/// exponent is clamped, so that fewer than 2^25 of them would overflow a sum.
constexpr double kLargestSummed = power_of_two(kMaxExponent + kHeadroomBits);

}  // namespace torchvq::kernels
