// Vectors of float64: rows that end within a vector, and the exponential. Kernels that include this are compiled without
// contraction, so that every instruction set gives the same bits.
#pragma once

#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

/// Where the exponential series ends: exp(-700) is a normal number.
constexpr double kLargestExponent = 700.0;

inline Doubles wide_splat(double value) { return Doubles{} + value; }

/// Calls body(first, count) for the vectors of a row; the last may have fewer elements than kHalfLanes.
template <typename Body>
inline void over_vectors(int64_t count, const Body& body) {
  int64_t at = 0;
  for (; at + kHalfLanes <= count; at += kHalfLanes) body(at, kHalfLanes);
  if (at < count) body(at, count - at);
}

/// The first `count` elements widened to float64, then zeros.
template <typename T>
inline Doubles load_some(const T* from, int64_t count) {
  using Part = Vector<T, kHalfLanes>;
  if (count == kHalfLanes) return __builtin_convertvector(load<Part>(from), Doubles);
  T values[kHalfLanes] = {};
  for (int64_t lane = 0; lane < count; ++lane) values[lane] = from[lane];
  return __builtin_convertvector(load<Part>(values), Doubles);
}

inline void store_some(double* to, Doubles v, int64_t count) {
  if (count == kHalfLanes) {
    store(to, v);
    return;
  }
  for (int64_t lane = 0; lane < count; ++lane) to[lane] = v[lane];
}

/// exp(-v) for v in [0, 700]: log 2 in two parts, then the exponential series.
inline Doubles exp_of_minus(Doubles v) {
  const Doubles shifted = v * -1.4426950408889634 + 6755399441055744.0;  // rounds to an integer
  const Doubles whole = shifted - 6755399441055744.0;
  const Doubles rest = (-v - whole * 0.69314718036912382) - whole * 1.9082149292705877e-10;
  Doubles power = wide_splat(1.0 / 6227020800.0);
  power = power * rest + 1.0 / 479001600.0;
  power = power * rest + 1.0 / 39916800.0;
  power = power * rest + 1.0 / 3628800.0;
  power = power * rest + 1.0 / 362880.0;
  power = power * rest + 1.0 / 40320.0;
  power = power * rest + 1.0 / 5040.0;
  power = power * rest + 1.0 / 720.0;
  power = power * rest + 1.0 / 120.0;
  power = power * rest + 1.0 / 24.0;
  power = power * rest + 1.0 / 6.0;
  power = power * rest + 0.5;
  power = power * rest + 1.0;
  power = power * rest + 1.0;
  const Longs bits = reinterpret_cast<Longs>(power) + (reinterpret_cast<Longs>(shifted) << 52);
  return reinterpret_cast<Doubles>(bits);
}

}  // namespace
}  // namespace torchvq::kernels
