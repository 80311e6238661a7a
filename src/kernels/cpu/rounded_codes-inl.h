// Rounding to 8 bits at the speed of reading: of rows, and of codes for one search, in float32, in the layout of
// prepared_codes.h. Included by prepared_scan-inl.h where there is AVX-512.
#pragma once

#include <immintrin.h>

namespace torchvq::kernels {
namespace {

constexpr float kLargestByte = 127;
constexpr float kLeastNorm = 1e-12F, kMostNorm = 1e12F;  // as in prepared_codes.cpp
constexpr int64_t kChunk = 4 * kLanes;                   // dimensions whose bytes fill a vector

/// Values [d, d + kLanes) of a vector of length `dim`, zero beyond its end; with `whole`, no vector is cut off.
template <bool whole>
inline Floats load_values(const float* from, int64_t d, int64_t dim) {
  if (whole || d + kLanes <= dim) return load<Floats>(from + d);
  const int64_t left = dim - d;
  const auto lanes = static_cast<__mmask16>(left <= 0 ? 0 : (1U << left) - 1);
  return reinterpret_cast<Floats>(_mm512_maskz_loadu_ps(lanes, from + d));
}

// Masked intrinsics are used because GCC warns about the arguments that the unmasked ones pass.
constexpr __mmask16 kEveryLane = 0xFFFF;

inline Floats magnitude_of(Floats value) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(value) & 0x7FFFFFFF);
}

/// The larger of `most` and |value|; NaN in `value` is ignored.
inline Floats larger_magnitude(Floats value, Floats most) {
  return reinterpret_cast<Floats>(_mm512_maskz_max_ps(
      kEveryLane, reinterpret_cast<__m512>(magnitude_of(value)), reinterpret_cast<__m512>(most)));
}

inline Floats root_of(Floats square) {
  return reinterpret_cast<Floats>(
      _mm512_maskz_sqrt_ps(kEveryLane, reinterpret_cast<__m512>(square)));
}

/// Rounds value * scale to the nearest integers and adds the squared rounding error to `lost`.
inline Ints rounded_product(Floats value, Floats scale, Floats& lost) {
  const Floats sum = value * scale + 12582912.0F;
  const Floats difference = value * scale - (sum - 12582912.0F);
  lost += difference * difference;
  return reinterpret_cast<Ints>(sum) - 0x4B400000;
}

/// Packs four vectors into bytes. Groups of four adjacent bytes stay together: block 4 p + l is in lane 4 l + p.
inline Ints packed_bytes(const Ints* four) {
  const auto vector = [&](int i) { return reinterpret_cast<__m512i>(four[i]); };
  return reinterpret_cast<Ints>(_mm512_packs_epi16(_mm512_packs_epi32(vector(0), vector(1)),
                                                   _mm512_packs_epi32(vector(2), vector(3))));
}

constexpr int block_of_lane(int lane) { return lane % 4 * 4 + lane / 4; }

PreparedRow round_row_bytes(const float* centred, float norm, int64_t dim, int32_t* words) {
  // A shorter row is all rounding error.
  if (!(norm > kLeastNorm)) {
    memset(words, 0, sizeof(int32_t) * static_cast<size_t>(prepared_blocks(dim)));
    return {words, 0, kLeastNorm, kLeastNorm, 0};
  }
  Floats most{}, lost{};
  for (int64_t d = 0; d < dim; d += kLanes)
    most = larger_magnitude(load<Floats>(centred + d), most);
  const float largest = largest_lane(most)[0], scale = kLargestByte / largest;
  Ints sum{};
  for (int64_t d = 0; d < dim; d += kLanes) {
    const Ints value = rounded_product(load<Floats>(centred + d), Floats{} + scale, lost);
    sum += value;
    int8_t bytes[kLanes];
    store(bytes, __builtin_convertvector(value, Vector<int8_t, kLanes>));
    const int64_t left = 4 * prepared_blocks(dim) - d;
    memcpy(words + d / 4, bytes, static_cast<size_t>(left < kLanes ? left : kLanes));
  }
  const float rounding = sqrtf(sum_lanes<float, kLanes>(lost)) / scale * 1.0001F +
                         4 * static_cast<float>(kFloatUnit) * norm;
  return {words, 1 / scale, norm + rounding, rounding, 128 * sum_lanes<int32_t, kLanes>(sum)};
}

/// The codes of a panel; missing ones repeat the last code.
struct PanelCodes {
  const float* code[kLanes];
  int64_t dim;
};

/// Properties of the codes of a panel, one code per lane.
struct PanelFacts {
  Floats squares, largest;  ///< of the codes minus the centre
  Floats scales;            ///< to bytes; 0: the code is too short or too large to round
  Floats lost;              ///< squared rounding errors, in units of a byte
};

inline Floats sums_of(Floats* rows) {
  transpose(rows);
  Floats sum{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sum += rows[i];
  return sum;
}

/// Squared norms of the codes minus the centre, and their largest magnitudes.
template <bool whole>
void measure_codes(const PanelCodes& codes, const float* center, PanelFacts& facts) {
  constexpr int kTogether = 4;
  Floats square[kLanes], most[kLanes];
  for (int j = 0; j < kLanes; j += kTogether) {
    Floats sum[kTogether] = {}, peak[kTogether] = {};
    for (int64_t d = 0; d < codes.dim; d += kLanes) {
      const Floats middle = load<Floats>(center + d);
#pragma GCC unroll 4
      for (int i = 0; i < kTogether; ++i) {
        const Floats value = load_values<whole>(codes.code[j + i], d, codes.dim) - middle;
        sum[i] += value * value;
        peak[i] = larger_magnitude(value, peak[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      square[j + i] = sum[i];
      most[j + i] = peak[i];
    }
  }
  facts.squares = sums_of(square);
  transpose(most);
  facts.largest = most[0];
#pragma GCC unroll 16
  for (int i = 1; i < kLanes; ++i) facts.largest = larger_magnitude(most[i], facts.largest);
}

/// Writes the bytes of the scaled codes.
template <bool whole>
void write_bytes(const PanelCodes& codes, const float* center, PanelFacts& facts, uint8_t* to) {
  const int64_t blocks = prepared_blocks(codes.dim);
  float scales[kLanes];
  store(scales, facts.scales);
  Floats lost[kLanes] = {};
  for (int64_t d = 0; d < codes.dim; d += kChunk) {
    Floats bytes[kLanes];
#pragma GCC unroll 4
    for (int j = 0; j < kLanes; ++j) {
      const Floats scale = Floats{} + scales[j];
      Floats sum{};
      Ints part[4] = {};
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const int64_t at = d + p * kLanes;
        if (!whole && at >= codes.dim) continue;
        __builtin_prefetch(codes.code[j] + kLanes * codes.dim + at);
        const Floats value =
            load_values<whole>(codes.code[j], at, codes.dim) - load<Floats>(center + at);
        part[p] = rounded_product(value, scale, sum);
      }
      lost[j] += sum;
      bytes[j] = reinterpret_cast<Floats>(packed_bytes(part) ^ static_cast<int32_t>(0x80808080U));
    }
    transpose(bytes);
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) {
      const int64_t block = d / 4 + block_of_lane(l);
      if (whole || block < blocks) store(to + block * 4 * kPreparedCodes, bytes[l]);
    }
  }
  facts.lost = sums_of(lost);
}

inline bool is_finite(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!(fabsf(values[i]) <= FLT_MAX)) return false;
  }
  return true;
}

/// half_bias: contribution of the bias to the offsets.
void write_facts(const PanelFacts& panel, Floats half_bias, const RoundingErrors& errors,
                 PreparedPanel& facts) {
  const Ints some = panel.scales > 0;
  const Floats least = Floats{} + kLeastNorm, bent = magnitude_of(half_bias);
  const Floats norm = some ? root_of(panel.squares) * 1.0001F : least;
  const Floats scale = some ? panel.largest / kLargestByte : Floats{};
  const Floats lost =
      some ? root_of(panel.lost) * scale * 1.0001F + 4 * static_cast<float>(kFloatUnit) * norm
           : least;
  const Floats whole = norm + errors.shift;
  const Floats intercept = errors.scan * (norm * norm / 2 + bent) +
                           errors.decision * (whole * errors.shift + whole * whole + bent) +
                           errors.tiny * (1 + norm);
  store(facts.scales, scale);
  store(facts.slopes, errors.scan * norm + errors.decision * whole + errors.tiny + lost);
  store(facts.intercepts, intercept);
  store(facts.offsets, panel.squares / 2 + half_bias - intercept);
}

/// Disables the lanes of codes that are not finite and those beyond `count`. False if a finite code is too large.
bool leave_out(const PanelCodes& codes, const PanelFacts& panel, int64_t count,
               PreparedPanel& facts) {
  for (int j = 0; j < kLanes; ++j) {
    if (j < count && panel.squares[j] < kMostNorm * kMostNorm) continue;
    if (j < count && is_finite(codes.code[j], codes.dim)) return false;
    facts.scales[j] = facts.slopes[j] = facts.intercepts[j] = 0;
    facts.offsets[j] = INFINITY;
  }
  return true;
}

template <bool whole>
bool round_panel(const PanelCodes& codes, int64_t count, const float* bias,
                 const RoundingErrors& errors, const float* center, PreparedPanel& to) {
  constexpr float kMost = kMostNorm * kMostNorm;
  float half_bias[kLanes] = {};
  for (int64_t j = 0; bias != nullptr && j < count; ++j) {
    half_bias[j] = bias[j] / 2;
    if (!(fabsf(half_bias[j]) < kMost)) return false;
  }
  PanelFacts facts;
  measure_codes<whole>(codes, center, facts);
  const Ints some = (facts.squares > kLeastNorm * kLeastNorm) & (facts.squares < kMost);
  facts.scales = some ? kLargestByte / facts.largest : Floats{};
  write_bytes<whole>(codes, center, facts, reinterpret_cast<uint8_t*>(&to + 1));
  write_facts(facts, load<Floats>(half_bias), errors, to);
  const bool kept = sum_lanes<int32_t, kLanes>(facts.squares < kMost) == -kLanes;
  return (kept && count == kLanes) || leave_out(codes, facts, count, to);
}

bool round_codes(const float* codes, int64_t size, const float* bias, const RoundingErrors& errors,
                 const PreparedCodes& to, int64_t begin, int64_t end) {
  const auto round = to.dim % kChunk == 0 ? round_panel<true> : round_panel<false>;
  PanelCodes panel;
  panel.dim = to.dim;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t first = p * kPreparedCodes;
    const int64_t count = size - first < kLanes ? size - first : kLanes;
    for (int64_t j = 0; j < kLanes; ++j) {
      panel.code[j] = codes + (first + (j < count ? j : count - 1)) * to.dim;
    }
    auto* const at = reinterpret_cast<PreparedPanel*>(const_cast<uint8_t*>(to.panel(p)));
    if (!round(panel, count, bias != nullptr ? bias + first : nullptr, errors, to.center(), *at)) {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace torchvq::kernels
