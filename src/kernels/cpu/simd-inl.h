// Portable vectors for kernels that are compiled once per instruction set: the compiler's vector
// extensions, with the width of the instruction set of the file. Everything has internal linkage:
// two levels must never share a function, or the linker might keep the one that the machine cannot
// run. C headers only; no objects of static storage.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

/// Lanes of a vector of 64-bit numbers.
constexpr int kHalfLanes = kLanes / 2;
using HalfFloats = Vector<float, kHalfLanes>;
using Doubles = Vector<double, kHalfLanes>;
using Longs = Vector<int64_t, kHalfLanes>;

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
inline Doubles widen(const double* from) { return load<Doubles>(from); }

inline void store_as(float* to, Doubles v) { store(to, __builtin_convertvector(v, HalfFloats)); }
inline void store_as(double* to, Doubles v) { store(to, v); }

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

/// What a value is compared by: at least a limit, or at most. NaN is neither.
enum class Side { kAtLeast, kAtMost };

/// A bit for each of kLanes values on that side of `limit`.
template <Side side = Side::kAtLeast>
inline uint64_t reaching(const float* values, float limit) {
#if defined(__AVX512F__) || defined(__AVX2__)
  constexpr int kCompare = side == Side::kAtLeast ? _CMP_GE_OQ : _CMP_LE_OQ;
#endif
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(_mm512_loadu_ps(values), _mm512_set1_ps(limit), kCompare);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values), _mm256_set1_ps(limit), kCompare)));
#else
  uint64_t found = 0;
  for (int l = 0; l < kLanes; ++l) {
    const bool hit = side == Side::kAtLeast ? values[l] >= limit : values[l] <= limit;
    found |= uint64_t{hit} << l;
  }
  return found;
#endif
}

/// The same of `vectors` times kLanes values.
template <int vectors, Side side = Side::kAtLeast>
inline uint64_t reaching_of(const float* values, float limit) {
  uint64_t found = 0;
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    found |= reaching<side>(values + v * kLanes, limit) << (v * kLanes);
  }
  return found;
}

/// Writes the places of the values on that side of `limit`, in order; returns their number.
template <Side side = Side::kAtLeast>
inline int64_t places_reaching(const float* values, int64_t count, float limit, int32_t* places) {
  constexpr int64_t kTogether = 64;
  int64_t found = 0, i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    uint64_t hits = reaching_of<kTogether / kLanes, side>(values + i, limit);
    for (; hits != 0; hits &= hits - 1) {
      places[found++] = static_cast<int32_t>(i + __builtin_ctzll(hits));
    }
  }
  for (; i < count; ++i) {
    const bool hit = side == Side::kAtLeast ? values[i] >= limit : values[i] <= limit;
    if (hit) places[found++] = static_cast<int32_t>(i);
  }
  return found;
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
