// Source of the kernels of sign_entropy.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/sign_entropy.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kStripe = 16;  // partial sums of a dot product, the same for every set
constexpr float kMostLogit = 87.0F;
constexpr float kSmallest = 1.17549435e-38F;

inline Floats splat(float value) { return Floats{} + value; }

inline Floats absolute(Floats v) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(v) & 0x7FFFFFFF);
}

/// exp(-v) for v in [0, 87], to one or two ulp: log 2 in two parts, then the exponential series.
inline Floats exp_of_minus(Floats v) {
  const Floats shifted = v * -1.44269504F + 12582912.0F;  // rounds to an integer, in the low bits
  const Floats whole = shifted - 12582912.0F;
  const Floats rest = (-v - whole * 0.693145752F) - whole * 1.42860677e-6F;
  Floats power = splat(1.0F / 5040.0F);
  power = power * rest + 1.0F / 720.0F;
  power = power * rest + 1.0F / 120.0F;
  power = power * rest + 1.0F / 24.0F;
  power = power * rest + 1.0F / 6.0F;
  power = power * rest + 0.5F;
  power = power * rest + 1.0F;
  power = power * rest + 1.0F;
  const Ints bits = reinterpret_cast<Ints>(power) + (reinterpret_cast<Ints>(shifted) << 23);
  return reinterpret_cast<Floats>(bits);
}

/// 2 atanh(s) for |s| <= 1/3.
inline Floats twice_atanh(Floats s) {
  const Floats square = s * s;
  Floats series = splat(2.0F / 15.0F);
  series = series * square + 2.0F / 13.0F;
  series = series * square + 2.0F / 11.0F;
  series = series * square + 2.0F / 9.0F;
  series = series * square + 2.0F / 7.0F;
  series = series * square + 2.0F / 5.0F;
  series = series * square + 2.0F / 3.0F;
  return s * 2.0F + s * square * series;
}

/// log(v) of normal numbers.
inline Floats logarithm(Floats v) {
  const Ints bits = reinterpret_cast<Ints>(v);
  // Exponent such that the rest is in [sqrt(1/2), sqrt(2)).
  const Ints exponent = (bits - 0x3F3504F3) >> 23;
  const Floats rest = reinterpret_cast<Floats>(bits - (exponent << 23));
  const Floats whole = __builtin_convertvector(exponent, Floats);
  const Floats log_rest = twice_atanh((rest - 1.0F) / (rest + 1.0F));
  return whole * 0.693145752F + (whole * 1.42860677e-6F + log_rest);
}

struct Bits {
  Floats on, off, entropy, slope;
};

inline Bits bits_of(Floats z) {
  const Floats size = absolute(z);
  const Floats t = size < kMostLogit ? size : splat(kMostLogit);
  const Floats e = exp_of_minus(t);
  const Floats likely = 1.0F / (1.0F + e);
  const Floats unlikely = e * likely;
  const Floats slope = t * (likely * unlikely);
  Bits bits;
  bits.on = z > 0.0F ? likely : unlikely;
  bits.off = z > 0.0F ? unlikely : likely;
  // log(1 + e) = 2 atanh(e / (2 + e)).
  bits.entropy = twice_atanh(e / (2.0F + e)) + t * unlikely;
  bits.slope = z > 0.0F ? -slope : slope;
  // NaN stays NaN.
  bits.on = z == z ? bits.on : z;
  bits.off = z == z ? bits.off : z;
  bits.entropy = z == z ? bits.entropy : z;
  bits.slope = z == z ? bits.slope : z;
  return bits;
}

void bits(const float* x, float gain, int64_t count, const SignBits& to) {
  for (int64_t at = 0; at < count; at += kLanes) {
    const int64_t wanted = count - at < kLanes ? count - at : kLanes;
    float padded[kLanes] = {};
    memcpy(padded, x + at, sizeof(float) * static_cast<size_t>(wanted));
    const Bits found = bits_of(load<Floats>(padded) * gain);
    const size_t bytes = sizeof(float) * static_cast<size_t>(wanted);
    memcpy(to.on + at, &found.on, bytes);
    memcpy(to.off + at, &found.off, bytes);
    memcpy(to.entropy + at, &found.entropy, bytes);
    memcpy(to.slope + at, &found.slope, bytes);
  }
}

void pyramid(const float* on, const float* off, int64_t count, float* pyramid) {
  pyramid[0] = 0;  // unused: the distribution of zero bits is pyramid[1]
  pyramid[1] = 1;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t size = int64_t{1} << k;
    const float* lower = pyramid + size;
    float *unset = pyramid + 2 * size, *set = pyramid + 3 * size;
    const float p = on[count - 1 - k], q = off[count - 1 - k];
    for (int64_t i = 0; i < size; ++i) {
      const float value = lower[i];
      unset[i] = value * q;
      set[i] = value * p;
    }
  }
}

/// One tile of the product: tile_rows rows and two vectors of columns.
template <int tile_rows>
inline void product_tile(const SignProduct& p, int64_t row, int64_t column, int64_t begin,
                         int64_t end) {
  Floats sums[tile_rows][2] = {};
  for (int64_t k = begin; k < end; ++k) {
    const float* left = p.left + k * p.left_depth_stride + row * p.left_row_stride;
    const float* right = p.right + k * p.right_stride + column;
    const Floats first = load<Floats>(right), second = load<Floats>(right + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; ++r) {
      const Floats factor = splat(left[r * p.left_row_stride]);
      sums[r][0] += factor * first;
      sums[r][1] += factor * second;
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    float* to = p.to + (row + r) * p.to_stride + column;
    store(to, load<Floats>(to) + sums[r][0]);
    store(to + kLanes, load<Floats>(to + kLanes) + sums[r][1]);
  }
}

inline void product_scalars(const SignProduct& p, int64_t row, int64_t column, int64_t begin,
                            int64_t end) {
  float sum = 0;
  for (int64_t k = begin; k < end; ++k) {
    sum += p.left[k * p.left_depth_stride + row * p.left_row_stride] *
           p.right[k * p.right_stride + column];
  }
  p.to[row * p.to_stride + column] += sum;
}

void product(const SignProduct& p) {
  constexpr int64_t kTileRows = 4;
  constexpr int64_t kTileColumns = int64_t{2} * kLanes;
  const int64_t tiled = p.columns / kTileColumns * kTileColumns;
  for (int64_t begin = 0; begin < p.depth; begin += kProductBlock) {
    const int64_t end = p.depth - begin < kProductBlock ? p.depth : begin + kProductBlock;
    for (int64_t row = 0; row < p.rows;) {
      const bool whole = p.rows - row >= kTileRows;
      for (int64_t column = 0; column < tiled; column += kTileColumns) {
        if (whole) {
          product_tile<kTileRows>(p, row, column, begin, end);
        } else {
          product_tile<1>(p, row, column, begin, end);
        }
      }
      const int64_t rows = whole ? kTileRows : 1;
      for (int64_t r = row; r < row + rows; ++r) {
        for (int64_t column = tiled; column < p.columns; ++column) {
          product_scalars(p, r, column, begin, end);
        }
      }
      row += rows;
    }
  }
}

void logarithms(const float* from, float scale, int64_t count, float* to) {
  for (int64_t at = 0; at < count; at += kLanes) {
    const int64_t wanted = count - at < kLanes ? count - at : kLanes;
    const size_t bytes = sizeof(float) * static_cast<size_t>(wanted);
    float padded[kLanes] = {};
    memcpy(padded, from + at, bytes);
    const Floats value = load<Floats>(padded) * scale;
    const Floats result = value < kSmallest ? logarithm(splat(kSmallest)) : logarithm(value);
    const Floats known = value == value ? result : value;
    memcpy(to + at, &known, bytes);
  }
}

/// sum of weights[i] * (upper[i] - lower[i]), in stripes.
inline float weighted_difference(const float* weights, const float* lower, const float* upper,
                                 int64_t count) {
  float stripes[kStripe] = {};
  int64_t i = 0;
  for (; i + kStripe <= count; i += kStripe) {
    for (int64_t s = 0; s < kStripe; ++s) {
      stripes[s] += weights[i + s] * (upper[i + s] - lower[i + s]);
    }
  }
  for (int64_t s = 0; i < count; ++i, ++s) stripes[s] += weights[i] * (upper[i] - lower[i]);
  float sum = 0;
  for (const float stripe : stripes) sum += stripe;
  return sum;
}

void fold(const float* on, const float* off, const float* pyramid, int64_t count, float weight,
          float* values, float* to) {
  for (int64_t bit = 0; bit < count; ++bit) {
    const int64_t half = int64_t{1} << (count - 1 - bit);
    const float* upper = values + half;
    const float p = on[bit], q = off[bit];
    to[bit] = weight * (p * q) * weighted_difference(pyramid + half, values, upper, half);
    for (int64_t i = 0; i < half; ++i) values[i] = q * values[i] + p * upper[i];
  }
}

}  // namespace

SignEntropyKernel TORCHVQ_LEVEL_NAME(sign_entropy)() {
  SignEntropyKernel table;
  table.bits = bits;
  table.pyramid = pyramid;
  table.product = product;
  table.logarithms = logarithms;
  table.fold = fold;
  return table;
}

}  // namespace torchvq::kernels
