// Source of the screening kernels on prepared codes; included by one file per instruction set, which
// defines TORCHVQ_LEVEL_NAME.
//
// A row is 16 bits. With VNNI these are two digits, whose products with the bytes of four dimensions an
// instruction adds; elsewhere bytes are widened to 16 bits, two dimensions to an instruction.
#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/prepared_codes.h"
#include "kernels/cpu/prepared_scan.h"
#include "kernels/cpu/simd-inl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define TORCHVQ_PREPARED_TARGET __attribute__((target("avx512vnni")))
#else
#define TORCHVQ_PREPARED_TARGET
#endif

namespace torchvq::kernels {
namespace {

constexpr int kVectors = kPreparedCodes / kLanes;  // of a panel
constexpr int64_t kAhead = 1024;                   // bytes that are asked for before they are read

float center_row(const float* row, const float* center, int64_t dim, float* centred) {
  Floats sum{};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Floats value = load<Floats>(row + d) - load<Floats>(center + d);
    sum += value * value;
    store(centred + d, value);
  }
  float rest = 0;
  for (; d < dim; ++d) {
    centred[d] = row[d] - center[d];
    rest += centred[d] * centred[d];
  }
  for (; d % kPreparedCodes != 0; ++d) centred[d] = 0;
  return sqrtf(sum_lanes<float, kLanes>(sum) + rest) * 1.0005F;
}

#if defined(__AVX512F__)

/// The high digits of four dimensions, and the low ones; a digit is in [-128, 127].
inline void words_of_block(const int16_t* integers, int32_t* words) {
  int8_t high[4], low[4];
  for (int i = 0; i < 4; ++i) {
    low[i] = static_cast<int8_t>(integers[i]);
    high[i] = static_cast<int8_t>((integers[i] - low[i]) / 256);
  }
  memcpy(words, high, sizeof high);
  memcpy(words + 1, low, sizeof low);
}

/// sum, of each kind of words, += products of a block of codes.
TORCHVQ_PREPARED_TARGET inline void add_products(Ints codes, Ints high, Ints low, Ints* sum) {
  const auto bytes = reinterpret_cast<__m512i>(codes);
  sum[0] = reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum[0]), bytes,
                                                      reinterpret_cast<__m512i>(high)));
  sum[1] = reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum[1]), bytes,
                                                      reinterpret_cast<__m512i>(low)));
}

inline Words total_of(const Ints* sum) {
  return (reinterpret_cast<Words>(sum[0]) << 8) + reinterpret_cast<Words>(sum[1]);
}

#else

/// Dimensions 0 and 2 of four, and 1 and 3: as the bytes of a code are widened.
inline void words_of_block(const int16_t* integers, int32_t* words) {
  const int16_t even[2] = {integers[0], integers[2]}, odd[2] = {integers[1], integers[3]};
  memcpy(words, even, sizeof even);
  memcpy(words + 1, odd, sizeof odd);
}

inline Ints multiply_pairs(Ints a, Ints b) {
#if defined(__AVX2__)
  return reinterpret_cast<Ints>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<Ints>(
      _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFF) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

inline void add_products(Ints codes, Ints even, Ints odd, Ints* sum) {
  sum[0] += multiply_pairs(codes & 0x00FF00FF, even);
  sum[1] += multiply_pairs((codes >> 8) & 0x00FF00FF, odd);
}

inline Words total_of(const Ints* sum) {
  return reinterpret_cast<Words>(sum[0]) + reinterpret_cast<Words>(sum[1]);
}

#endif

PreparedRow round_row(const float* centred, float norm, int64_t dim, int16_t* integers,
                      int32_t* words) {
  using Shorts = Vector<int16_t, kLanes>;
  const float scale = static_cast<float>(kCoarseNorm) / norm;
  Ints sum{};
  for (int64_t d = 0; d < dim; d += kLanes) {
    // Adding this number rounds to integers, which are below 2^22.
    const Ints value =
        reinterpret_cast<Ints>(load<Floats>(centred + d) * scale + 12582912.0F) - 0x4B400000;
    sum += value;
    store(integers + d, __builtin_convertvector(value, Shorts));
  }
  for (int64_t block = 0; block < prepared_blocks(dim); ++block) {
    words_of_block(integers + 4 * block, words + 2 * block);
  }
  return {words, 1 / scale, norm, 128 * sum_lanes<int32_t, kLanes>(sum)};
}

/// Sums of the rows of a tile with the codes of a panel, of both kinds of words. A single row has several, as each
/// addition waits for the one before it.
template <int rows>
constexpr int kChains = rows == 1 ? 4 : 1;
template <int rows>
struct PanelSums {
  Ints of[kChains<rows>][rows][kVectors][2] = {};
};

template <int count>
TORCHVQ_PREPARED_TARGET inline void add_block(const PreparedRow* rows, const uint8_t* codes,
                                              int64_t block, Ints (&sums)[count][kVectors][2]) {
  const uint8_t* const at = codes + block * 4 * kPreparedCodes;
  __builtin_prefetch(at + kAhead);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Ints bytes = load<Ints>(at + int64_t{4} * v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r) {
      const int32_t* const words = rows[r].words + 2 * block;
      add_products(bytes, Ints{} + words[0], Ints{} + words[1], sums[r][v]);
    }
  }
}

template <int count>
inline void store_scores(const PreparedRow* rows, const PreparedPanel& facts,
                         const PanelSums<count>& sums, float* scores, int64_t stride) {
#pragma GCC unroll 4
  for (int r = 0; r < count; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Words total = Words{} - static_cast<uint32_t>(rows[r].offset);
#pragma GCC unroll 4
      for (int c = 0; c < kChains<count>; ++c) total += total_of(sums.of[c][r][v]);
      const int64_t first = int64_t{v} * kLanes;
      const Floats product = __builtin_convertvector(reinterpret_cast<Ints>(total), Floats);
      const Floats scale = load<Floats>(facts.scales + first) * rows[r].unit;
      const Floats reach =
          load<Floats>(facts.slopes + first) * rows[r].norm - load<Floats>(facts.offsets + first);
      store(scores + r * stride + first, product * scale + reach);
    }
  }
}

template <int count>
TORCHVQ_PREPARED_TARGET inline void score_panel(const PreparedRow* rows, const uint8_t* panel,
                                                int64_t blocks, float* scores, int64_t stride) {
  PanelSums<count> sums;
  const uint8_t* const codes = panel + sizeof(PreparedPanel);
  int64_t block = 0;
  for (; block + kChains<count> <= blocks; block += kChains<count>) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains<count>; ++c) add_block(rows, codes, block + c, sums.of[c]);
  }
  for (; block < blocks; ++block) add_block(rows, codes, block, sums.of[0]);
  store_scores(rows, *reinterpret_cast<const PreparedPanel*>(panel), sums, scores, stride);
}

TORCHVQ_PREPARED_TARGET void score(const PreparedRow* rows, int64_t row_count,
                                   const uint8_t* panels, int64_t dim, int64_t begin, int64_t end,
                                   float* scores, int64_t stride) {
  constexpr int kTogether = kLanes == 16 ? 4 : 2;
  const int64_t blocks = prepared_blocks(dim);
  for (int64_t p = begin; p < end; ++p) {
    const uint8_t* const panel = panels + p * prepared_panel_bytes(dim);
    float* const to = scores + p * kPreparedCodes;
    int64_t r = 0;
    for (; r + kTogether <= row_count; r += kTogether) {
      score_panel<kTogether>(rows + r, panel, blocks, to + r * stride, stride);
    }
    for (; r < row_count; ++r) score_panel<1>(rows + r, panel, blocks, to + r * stride, stride);
  }
}

}  // namespace

PreparedScan TORCHVQ_LEVEL_NAME(prepared_scan)() { return {center_row, round_row, score}; }

}  // namespace torchvq::kernels
