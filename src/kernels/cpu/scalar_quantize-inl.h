// Source of the kernels of scalar_quantize.h; included by one file per instruction set, which
// defines TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/scalar_quantize.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

/// Calls body(values, pattern offset, first value, number of valid values) for vectors
/// that cover `count` values.
template <typename Body>
inline void over_vectors(int64_t count, int64_t period, const Body& body) {
  int64_t at = 0, place = 0;
  for (; at < count; at += kLanes) {
    body(at, place, count - at < kLanes ? count - at : kLanes);
    place += kLanes;
    if (place == period) place = 0;
  }
}

inline Floats load_some(const float* from, int64_t count) {
  if (count == kLanes) return load<Floats>(from);
  float values[kLanes] = {};
  memcpy(values, from, sizeof(float) * static_cast<size_t>(count));
  return load<Floats>(values);
}

template <typename V, typename T>
inline void store_some(T* to, V value, int64_t count) {
  if (count == kLanes) {
    store(to, value);
    return;
  }
  memcpy(to, &value, sizeof(T) * static_cast<size_t>(count));
}

struct Level {
  Ints number;
  Floats code;
};

/// A value that is not finite has level -1 and code NaN.
inline Level level_of(const ScalarPatterns& patterns, Floats value, int64_t place) {
  Ints level{};
  for (int64_t k = 0; k < patterns.change_count; ++k) {
    level -= value >= load<Floats>(patterns.changes + k * patterns.period + place);
  }
  const Floats code = (__builtin_convertvector(level, Floats) * patterns.factor -
                       load<Floats>(patterns.centre + place)) /
                      load<Floats>(patterns.divisor + place);
  const Floats nothing = value - value;  // NaN where the value is not finite
  return {nothing == nothing ? level : Ints{} - 1, nothing == nothing ? code : nothing};
}

void quantize(const ScalarPatterns& patterns, const float* x, int64_t count, float* codes,
              int32_t* levels) {
  over_vectors(count, patterns.period, [&](int64_t at, int64_t place, int64_t wanted) {
    const Level level = level_of(patterns, load_some(x + at, wanted), place);
    store_some(codes + at, level.code, wanted);
    store_some(levels + at, level.number, wanted);
  });
}

void walk(const ScalarPatterns& patterns, const ScalarStack& stack, const float* x, int64_t count,
          float* total, int32_t* levels) {
  over_vectors(count, patterns.period, [&](int64_t at, int64_t place, int64_t wanted) {
    Floats left = load_some(x + at, wanted), sum{};
    for (int64_t q = 0; q < stack.quantizers; ++q) {
      const Floats scale = load<Floats>(stack.scales + q * patterns.period + place);
      const Level level = level_of(patterns, left / scale, place);
      const Floats code = level.code * scale;
      sum += code;
      left -= code;
      store_some(levels + q * count + at, level.number, wanted);
    }
    store_some(total + at, sum, wanted);
  });
}

/// exp(-v) for v in [0, 40], to some units in the last place.
inline Floats exp_of_minus(Floats v) {
  const Floats exponent = v * -1.44269504F;
  const Floats shifted = exponent + 12582912.0F;  // rounds to an integer, in the low bits
  const Floats rest = exponent - (shifted - 12582912.0F);
  // 2^rest on [-1/2, 1/2]: the series of exp(rest * log 2).
  Floats power = Floats{} + 1.5403530e-4F;
  power = power * rest + 1.3333558e-3F;
  power = power * rest + 9.6181291e-3F;
  power = power * rest + 5.5504109e-2F;
  power = power * rest + 2.4022651e-1F;
  power = power * rest + 6.9314718e-1F;
  power = power * rest + 1.0F;
  const Ints bits = reinterpret_cast<Ints>(power) + (reinterpret_cast<Ints>(shifted) << 23);
  return reinterpret_cast<Floats>(bits);
}

inline Floats absolute(Floats v) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(v) & 0x7FFFFFFF);
}

/// The derivative of tanh, 4 e / (1 + e)^2 with e = exp(-2 |z|); |z| is clamped to 20, where
/// the derivative is 2e-17.
inline Floats tanh_slope(Floats z) {
  const Floats size = absolute(z);
  const Floats e = exp_of_minus(2.0F * (size < 20.0F ? size : Floats{} + 20.0F));
  const Floats slope = 4.0F * e / ((1.0F + e) * (1.0F + e));
  return z == z ? slope : z;
}

/// The slope of the bound, which is 0 outside of a clamp.
inline Floats bound_slope(bool tanh, Floats z) {
  return tanh ? tanh_slope(z) : absolute(z) <= 1.0F ? Floats{} + 1.0F : Floats{};
}

void slope(const ScalarSlopes& slopes, const float* grad, const float* x, int64_t count,
           float* to) {
  over_vectors(count, slopes.period, [&](int64_t at, int64_t place, int64_t wanted) {
    const Floats z = load_some(x + at, wanted) + load<Floats>(slopes.shift + place);
    const Floats gain = load<Floats>(slopes.gain + place) * bound_slope(slopes.tanh, z);
    store_some(to + at, load_some(grad + at, wanted) * gain, wanted);
  });
}

inline bool any_left(Floats values) {
  bool any = false;
  for (int lane = 0; lane < kLanes; ++lane) any |= values[lane] != 0.0F;
  return any;
}

void walk_slope(const ScalarPatterns& patterns, const ScalarStack& stack, bool tanh,
                const float* grad, const float* x, int64_t count, float* to) {
  over_vectors(count, patterns.period, [&](int64_t at, int64_t place, int64_t wanted) {
    Floats left = load_some(x + at, wanted), closed = Floats{} + 1.0F;
    for (int64_t q = 0; q < stack.quantizers; ++q) {
      const Floats scale = load<Floats>(stack.scales + q * patterns.period + place);
      const Floats z = left / scale;
      closed *= 1.0F - bound_slope(tanh, z);
      // All factors are 0 if all values are inside the clamp; later levels then change nothing.
      if (q + 1 == stack.quantizers || (!tanh && !any_left(closed))) break;
      left -= level_of(patterns, z, place).code * scale;
    }
    store_some(to + at, load_some(grad + at, wanted) * (1.0F - closed), wanted);
  });
}

}  // namespace

ScalarQuantizeKernel TORCHVQ_LEVEL_NAME(scalar_quantize)() {
  ScalarQuantizeKernel table;
  table.quantize = quantize;
  table.slope = slope;
  table.walk = walk;
  table.walk_slope = walk_slope;
  return table;
}

}  // namespace torchvq::kernels
