// Portable vectors for kernels that are compiled once per instruction set: the compiler's vector
// extensions, with the width of the instruction set of the file. Everything has internal linkage:
// two levels must never share a function, or the linker might keep the one that the machine cannot
// run. C headers only; no objects of static storage.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace torchvq::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

template <typename T, int count>
struct VectorOf {
  using type __attribute__((vector_size(count * sizeof(T)))) = T;
};
template <typename T, int count>
using Vector = typename VectorOf<T, count>::type;

using Floats = Vector<float, kLanes>;
using Ints = Vector<int32_t, kLanes>;
using Words = Vector<uint32_t, kLanes>;
using HalfFloats = Vector<float, kLanes / 2>;
using Doubles = Vector<double, kLanes / 2>;

template <typename V, typename T>
inline V load(const T* from) {
  V v;
  memcpy(&v, from, sizeof v);
  return v;
}

template <typename V, typename T>
inline void store(T* to, V v) {
  memcpy(to, &v, sizeof v);
}

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

inline Doubles widen(const float* from) {
  return __builtin_convertvector(load<HalfFloats>(from), Doubles);
}

template <typename T, int count>
inline T sum_lanes(Vector<T, count> v) {
  if constexpr (count == 2) {
    return v[0] + v[1];
  } else {
    Vector<T, count / 2> half[2];
    memcpy(half, &v, sizeof v);
    return sum_lanes<T, count / 2>(half[0] + half[1]);
  }
}

/// Lanes selected from a and b, numbered consecutively; constant `places` compile to
/// one or two instructions.
inline Floats shuffle(Floats a, Floats b, Ints places) {
#if defined(__clang__)
  Floats result;
  for (int l = 0; l < kLanes; ++l)
    result[l] = places[l] < kLanes ? a[places[l]] : b[places[l] - kLanes];
  return result;
#else
  return __builtin_shuffle(a, b, places);
#endif
}

/// Swaps the lanes of v with those `distance` away.
template <int distance, typename V>
inline V swap_lanes(V v) {
  Ints places{};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) places[l] = l ^ distance;
  const Floats lanes = reinterpret_cast<Floats>(v);
  return reinterpret_cast<V>(shuffle(lanes, lanes, places));
}

/// Broadcasts the largest lane to all lanes.
template <typename V, int distance = kLanes / 2>
inline V largest_lane(V v) {
  const V other = swap_lanes<distance>(v);
  v = v > other ? v : other;
  if constexpr (distance > 1) return largest_lane<V, distance / 2>(v);
  return v;
}

/// Exchanges the off-diagonal blocks of side `stride` in every block of side 2 * stride.
template <int stride>
inline void exchange_blocks(Floats* rows) {
  Ints upper{}, lower{};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) {
    upper[l] = l & stride ? kLanes + l - stride : l;
    lower[l] = l & stride ? kLanes + l : l + stride;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & stride) continue;
    const Floats a = rows[i], b = rows[i + stride];
    rows[i] = shuffle(a, b, upper);
    rows[i + stride] = shuffle(a, b, lower);
  }
}

/// Transposes kLanes vectors in place.
inline void transpose(Floats* rows) {
  if constexpr (kLanes >= 16) exchange_blocks<8>(rows);
  if constexpr (kLanes >= 8) exchange_blocks<4>(rows);
  exchange_blocks<2>(rows);
  exchange_blocks<1>(rows);
}

}  // namespace
}  // namespace torchvq::kernels
