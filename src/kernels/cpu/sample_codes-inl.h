// Source of the kernels of sample_codes.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME.
#include "kernels/cpu/sample_codes.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

using Bits = Vector<uint64_t, kHalfLanes>;

double best(const double* scores, int64_t size) {
  Doubles most = Doubles{} + scores[0];
  Longs absent{};
  int64_t k = 0;
  for (; k + kHalfLanes <= size; k += kHalfLanes) {
    const Doubles score = load<Doubles>(scores + k);
    absent |= score != score;
    most = score > most ? score : most;
  }
  double found = scores[0];
  for (int64_t lane = 0; lane < kHalfLanes; ++lane) {
    if (absent[lane]) return static_cast<double>(NAN);
    if (most[lane] > found) found = most[lane];
  }
  for (; k < size; ++k) {
    if (scores[k] != scores[k]) return scores[k];
    if (scores[k] > found) found = scores[k];
  }
  return found;
}

/// random_bits() of random.h, which this file cannot include: its functions would be shared by all
/// levels.
inline Bits random_bits_of(Bits position, uint64_t key) {
  Bits z = key + position * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// Below 1 - u <= -log(u), from the first 52 of the 53 bits of u.
inline Doubles below_waiting(Bits bits) {
  const Doubles one_plus_u = reinterpret_cast<Doubles>((bits >> 12) | 0x3FF0000000000000ULL);
  return (2.0 - 0x1p-51) - one_plus_u;
}

/// Below exp(64 v) for v >= 0: (1 + v)^64, without the digits that rounding may have added.
inline Doubles below_exponential(Doubles v) {
  Doubles power = 1.0 + v;
#pragma GCC unroll 6
  for (int squared = 0; squared < 6; ++squared) power = power * power;
  return power * (1.0 - 1e-9);
}

void hurdles(const double* scores, int64_t size, double best, double temperature, uint64_t key,
             uint64_t position, double* to) {
  const double scale = 1.0 / (64.0 * temperature);
  Bits places{};
  for (int64_t lane = 0; lane < kHalfLanes; ++lane) {
    places[lane] = position + static_cast<uint64_t>(lane);
  }
  for (int64_t k = 0; k < size; k += kHalfLanes) {
    double last[kHalfLanes] = {};
    const bool whole = k + kHalfLanes <= size;
    if (!whole) memcpy(last, scores + k, static_cast<size_t>(size - k) * sizeof(double));
    const Doubles lag = best - load<Doubles>(whole ? scores + k : last);
    const Doubles hurdle =
        below_waiting(random_bits_of(places, key)) * below_exponential(lag * scale);
    if (whole) {
      store(to + k, hurdle);
    } else {
      for (int64_t lane = 0; k + lane < size; ++lane) to[k + lane] = hurdle[lane];
    }
    places += static_cast<uint64_t>(kHalfLanes);
  }
}

}  // namespace

SampleCodesKernel TORCHVQ_LEVEL_NAME(sample_codes)() { return {best, hurdles}; }

}  // namespace torchvq::kernels
