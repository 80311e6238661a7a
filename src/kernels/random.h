// Counter-based random numbers: a value is a pure function of (seed, step, purpose, stream,
// position), so it is the same on any device, for any number of threads, and after resuming from a
// checkpoint. Hash: finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
// number generators"). src/detail/random_tensor.cpp does the same with tensor operators; both must
// give the same bits, so both use only +, *, / and integer operations, in the same order.
// Torch-free and stateless.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/on_device.h"
#include "kernels/root.h"

namespace torchvq::kernels {

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;
constexpr uint64_t kMixFirst = 0xbf58476d1ce4e5b9ULL;
constexpr uint64_t kMixSecond = 0x94d049bb133111ebULL;

constexpr uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * kMixFirst;
  z = (z ^ (z >> 27)) * kMixSecond;
  return z ^ (z >> 31);
}

/// Stream 0 is the plain key; other streams (rank, level, head) derive from it.
constexpr uint64_t random_key(uint64_t seed, uint64_t step, uint64_t purpose, uint64_t stream = 0) {
  return mix_bits(seed ^ mix_bits(step ^ mix_bits(purpose))) ^ mix_bits(stream);
}

constexpr uint64_t random_bits(uint64_t key, uint64_t position) {
  return mix_bits(key + position * kGoldenGamma);
}

/// An odd multiple of 2^-precision: inside (0, 1), symmetric about 1/2, and exact in a float that
/// has `precision` bits.
TORCHVQ_ON_DEVICE inline double uniform_from_bits(uint64_t bits, int precision) {
  return static_cast<double>((bits >> (64 - precision)) | 1) * std::ldexp(1.0, -precision);
}

/// Natural logarithm of u in (0, 1), by the series of atanh; within a few units of the last place.
/// Not std::log, whose last bits differ between libraries and devices.
TORCHVQ_ON_DEVICE inline double log_of_uniform(double u) {
  int exponent = 0;
  double mantissa = std::frexp(u, &exponent);
  if (mantissa < 0.70710678118654752) {
    mantissa = mantissa * 2.0;
    exponent -= 1;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  double series = 1.0 / 21.0;
  for (int k = 19; k >= 1; k -= 2) series = series * z + 1.0 / k;
  return static_cast<double>(exponent) * 0.69314718055994531 + 2.0 * s * series;
}

/// Coefficients of sin(y) / y in powers of y^2, highest first: (-1)^k / (2k+1)!.
constexpr double kSineSeries[] = {1.0 / 51090942171709440000.0,
                                  -1.0 / 121645100408832000.0,
                                  1.0 / 355687428096000.0,
                                  -1.0 / 1307674368000.0,
                                  1.0 / 6227020800.0,
                                  -1.0 / 39916800.0,
                                  1.0 / 362880.0,
                                  -1.0 / 5040.0,
                                  1.0 / 120.0,
                                  -1.0 / 6.0,
                                  1.0};

/// cos(2 pi u) for u in (0, 1), folded to the quarter where the sine series converges fast.
inline double cosine_of_turn(double u) {
  const double y = (0.25 - std::fabs(u - 0.5)) * 6.2831853071795865;
  const double z = y * y;
  double series = kSineSeries[0];
  for (int k = 1; k < 11; ++k) series = series * z + kSineSeries[k];
  return -(y * series);
}

/// Standard normal by Box and Muller 1958 (the cosine half only, so that each element depends on
/// its own bits alone).
inline double normal_from_bits(uint64_t radius_bits, uint64_t angle_bits) {
  const double radius = square_root(log_of_uniform(uniform_from_bits(radius_bits, 53)) * -2.0);
  return radius * cosine_of_turn(uniform_from_bits(angle_bits, 53));
}

}  // namespace torchvq::kernels
