// Coarse screening: values rounded to 16-bit integers, whose products are summed exactly, twice as
// many per instruction as in float32. Included by nearest_code_scan-inl.h.
//
// Enabled where it pays: with multiply-add of pairs (SSE2, AVX2), and on AVX-512 only with VNNI,
// without which pairs are no faster than floats.
#pragma once

#include "kernels/cpu/nearest_code_pack-inl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TORCHVQ_COARSE 1
#endif
#if defined(__AVX512F__)
#define TORCHVQ_COARSE_TARGET __attribute__((target("avx512vnni")))
#else
#define TORCHVQ_COARSE_TARGET
#endif

namespace torchvq::kernels {
namespace {

/// Rounds numbers below 2^22 to the nearest integers.
inline Ints rounded(Floats value) {
  return reinterpret_cast<Ints>(value + 12582912.0f) - 0x4B400000;
}

/// Packs two 16-bit numbers into each lane, the first one low.
inline Ints pairs_of(Ints low, Ints high) { return (low & 0xFFFF) | (high << 16); }

/// Rounds `value` and adds the squared error to `error`.
inline Ints rounded_with_error(Floats value, Floats& error) {
  const Ints result = rounded(value);
  const Floats difference = value - __builtin_convertvector(result, Floats);
  error += difference * difference;
  return result;
}

/// A word holds a pair of dimensions.
int64_t coarse_words(int64_t dim) { return (dim + 1) / 2; }

float coarse_codes(const float* panels, int64_t panel_count, int64_t dim, int64_t depth,
                   float scale, int32_t* to) {
  const int64_t pairs = coarse_words(dim);
  Floats largest{};
  for (int64_t panel = 0; panel < panel_count; ++panel, panels += depth * kPanel) {
    for (int64_t j = 0; j < kPanel; j += kLanes) {
      Floats error{};
      for (int64_t p = 0; p < pairs; ++p) {
        const float* at = panels + 2 * p * kPanel + j;
        const Ints low = rounded_with_error(load<Floats>(at) * scale, error);
        Ints high{};
        if (2 * p + 1 < dim) high = rounded_with_error(load<Floats>(at + kPanel) * scale, error);
        store(to + (panel * pairs + p) * kPanel + j, pairs_of(low, high));
      }
      largest = maximum(largest, error);
    }
  }
  return largest_lane(largest)[0];
}

void coarse_rows(const float* rows, int64_t row_count, int64_t dim, int64_t depth,
                 const float* scales, int32_t* to, float* errors) {
  using Shorts = Vector<int16_t, kLanes>;
  const int64_t pairs = coarse_words(dim);
  for (int64_t r = 0; r < row_count; ++r, rows += depth, to += pairs) {
    int16_t numbers[kLanes + 2] = {};
    to[pairs - 1] = 0;
    int64_t d = 0;
    Floats error{};
    for (; d + kLanes <= dim; d += kLanes) {
      const Ints value = rounded_with_error(load<Floats>(rows + d) * scales[r], error);
      store(to + d / 2, __builtin_convertvector(value, Shorts));
    }
    for (int64_t i = 0; d + i < dim; ++i) {
      Floats value{};
      value[0] = rows[d + i] * scales[r];
      numbers[i] = static_cast<int16_t>(rounded_with_error(value, error)[0]);
    }
    memcpy(to + d / 2, numbers, sizeof(int32_t) * static_cast<size_t>(pairs - d / 2));
    errors[r] = sum_lanes<float, kLanes>(error);
  }
}

#if defined(TORCHVQ_COARSE)

TORCHVQ_COARSE_TARGET inline Ints add_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return sum + reinterpret_cast<Ints>(
                   _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return sum + reinterpret_cast<Ints>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
}

/// Scores of a tile: the exact sums of products, in units of `units[row]`, minus the half norms.
TORCHVQ_COARSE_TARGET inline void score_coarse_tile(const int32_t* rows, const float* units,
                                                    const int32_t* panel, const float* half_norms,
                                                    int64_t pairs, Tile& tile) {
  Ints sum[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = Ints{};
  }
  for (int64_t p = 0; p < pairs; ++p) {
    Ints code[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) code[c] = load<Ints>(panel + p * kPanel + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Ints value = Ints{} + rows[r * pairs + p];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] = add_products(sum[r][c], value, code[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    const Floats unit = Floats{} + units[r];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      tile.score[r][c] =
          __builtin_convertvector(sum[r][c], Floats) * unit - load<Floats>(half_norms + c * kLanes);
    }
  }
}

TORCHVQ_COARSE_TARGET void coarse_scan(const int32_t* rows, const float* units, int64_t row_count,
                                       const int32_t* panels, const float* half_norms,
                                       int64_t panel_count, int64_t pairs, void* state,
                                       ScanResult* results) {
  auto* states = static_cast<RowState*>(state);
  for (int64_t r = 0; r < row_count; ++r) start(states[r]);
  for (int64_t panel = 0; panel < panel_count; ++panel) {
    const int32_t* values = panels + panel * kPanel * pairs;
    for (int64_t row = 0; row < row_count; row += kTileRows) {
      Tile tile;
      score_coarse_tile(rows + row * pairs, units + row, values, half_norms + panel * kPanel, pairs,
                        tile);
      take_tile<false>(tile, static_cast<int32_t>(panel * kPanel), states + row);
    }
  }
  for (int64_t r = 0; r < row_count; ++r) results[r] = finish(states[r]);
}

TORCHVQ_COARSE_TARGET void coarse_score(const int32_t* rows, const float* units,
                                        const int32_t* panels, const float* half_norms,
                                        int64_t panel_count, int64_t pairs, float* scores) {
  for (int64_t panel = 0; panel < panel_count; ++panel) {
    Tile tile;
    score_coarse_tile(rows, units, panels + panel * kPanel * pairs, half_norms + panel * kPanel,
                      pairs, tile);
    store_tile(tile, panel, panel_count, scores);
  }
}

inline bool coarse_pays() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512vnni");
#else
  return true;
#endif
}

#endif  // TORCHVQ_COARSE

void set_coarse(NearestCodeScan& table) {
  table.coarse_words = coarse_words;
  table.coarse_codes = coarse_codes;
  table.coarse_rows = coarse_rows;
#if defined(TORCHVQ_COARSE)
  table.coarse_scan = coarse_pays() ? coarse_scan : nullptr;
  table.coarse_score = coarse_pays() ? coarse_score : nullptr;
#else
  table.coarse_scan = nullptr;
  table.coarse_score = nullptr;
#endif
}

}  // namespace
}  // namespace torchvq::kernels
