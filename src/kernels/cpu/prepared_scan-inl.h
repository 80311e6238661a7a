// Source of the kernels that screen prepared codes; included by one file per instruction set, which
// defines TORCHVQ_LEVEL_NAME.
//
// A row has 16 bits per value. With VNNI these are two 8-bit digits (one digit if there are many
// rows), and one instruction adds the products of four dimensions with the bytes of a code;
// elsewhere bytes are widened to 16 bits, two dimensions per instruction.
#include <float.h>

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

constexpr int kVectors = kPreparedCodes / kLanes;  // per panel
constexpr int64_t kAhead = 4096;                   // prefetch distance in bytes
constexpr int kPanels = kLanes == 16 ? 2 : 1;      // panels multiplied together
constexpr int64_t kBlockCodes = kBlockPanels * kPreparedCodes;
constexpr int64_t kTileBlocks = 4;  // blocks whose scores are kept for the rows of a tile

// Rows -------------------------------------------------------------------------------------------

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

/// Rounds numbers below 2^22 to the nearest integers, by adding 1.5 * 2^23.
inline Ints rounded(Floats value) {
  return reinterpret_cast<Ints>(value + 12582912.0F) - 0x4B400000;
}

#if defined(__AVX512F__)

/// The high digits of four dimensions, then the low ones; a digit is in [-128, 127].
inline void words_of_block(const int16_t* integers, int32_t* words) {
  int8_t high[4], low[4];
  for (int i = 0; i < 4; ++i) {
    low[i] = static_cast<int8_t>(integers[i]);
    high[i] = static_cast<int8_t>((integers[i] - low[i]) / 256);
  }
  memcpy(words, high, sizeof high);
  memcpy(words + 1, low, sizeof low);
}

#else

/// Dimensions 0 and 2 of four, then 1 and 3: the order in which the bytes of a code are widened.
inline void words_of_block(const int16_t* integers, int32_t* words) {
  const int16_t even[2] = {integers[0], integers[2]}, odd[2] = {integers[1], integers[3]};
  memcpy(words, even, sizeof even);
  memcpy(words + 1, odd, sizeof odd);
}

#endif

PreparedRow round_row(const float* centred, float norm, int64_t dim, int16_t* integers,
                      int32_t* words) {
  using Shorts = Vector<int16_t, kLanes>;
  const float scale = static_cast<float>(kCoarseNorm) / norm;
  Ints sum{};
  for (int64_t d = 0; d < dim; d += kLanes) {
    const Ints value = rounded(load<Floats>(centred + d) * scale);
    sum += value;
    store(integers + d, __builtin_convertvector(value, Shorts));
  }
  for (int64_t block = 0; block < prepared_blocks(dim); ++block) {
    words_of_block(integers + 4 * block, words + 2 * block);
  }
  return {words, 1 / scale, norm, 0, 128 * sum_lanes<int32_t, kLanes>(sum)};
}

// Scores -----------------------------------------------------------------------------------------

#if defined(__AVX512F__)

/// The bytes of a block of codes that are multiplied with a word of a row.
inline Ints part_of(Ints codes, int /*word*/) { return codes; }

TORCHVQ_PREPARED_TARGET inline Ints add_products(Ints sum, Ints codes, Ints row) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                    reinterpret_cast<__m512i>(codes),
                                                    reinterpret_cast<__m512i>(row)));
}

template <int words>
inline Words total_of(const Ints* sum) {
  if constexpr (words == 1) return reinterpret_cast<Words>(sum[0]);
  return (reinterpret_cast<Words>(sum[0]) << 8) + reinterpret_cast<Words>(sum[1]);
}

#else

inline Ints part_of(Ints codes, int word) { return (word == 0 ? codes : codes >> 8) & 0x00FF00FF; }

inline Ints add_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX2__)
  return sum + reinterpret_cast<Ints>(
                   _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return sum + reinterpret_cast<Ints>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return sum + (a & 0xFFFF) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

template <int words>
inline Words total_of(const Ints* sum) {
  return reinterpret_cast<Words>(sum[0]) + reinterpret_cast<Words>(sum[1]);
}

#endif

/// Sums of the rows of a tile with the codes of some panels, for each kind of word. A single row
/// has several independent sums, because each addition waits for the previous one.
template <int rows>
constexpr int kChains = rows == 1 ? 4 : 1;
template <int words, int rows, int panels>
struct TileSums {
  Ints of[kChains<rows>][rows][panels][kVectors][words] = {};
};

template <int words, int count, int panels>
TORCHVQ_PREPARED_TARGET inline void add_block(const PreparedRow* rows, const uint8_t* codes,
                                              int64_t stride, int64_t block,
                                              Ints (&sums)[count][panels][kVectors][words]) {
  Ints bytes[panels][kVectors];
#pragma GCC unroll 2
  for (int p = 0; p < panels; ++p) {
    const uint8_t* const at = codes + p * stride + block * 4 * kPreparedCodes;
    __builtin_prefetch(at + kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bytes[p][v] = load<Ints>(at + int64_t{4} * v * kLanes);
  }
#pragma GCC unroll 8
  for (int r = 0; r < count; ++r) {
#pragma GCC unroll 2
    for (int w = 0; w < words; ++w) {
      const Ints word = Ints{} + rows[r].words[words * block + w];
#pragma GCC unroll 2
      for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][p][v][w] = add_products(sums[r][p][v][w], part_of(bytes[p][v], w), word);
        }
      }
    }
  }
}

/// Starts from what the 128 in every byte of the codes adds to the products.
template <int words, int count, int panels>
inline void start_sums(const PreparedRow* rows, TileSums<words, count, panels>& sums) {
#pragma GCC unroll 8
  for (int r = 0; r < count; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums.of[0][r][p][v][words - 1] = Ints{} - rows[r].offset;
    }
  }
}

/// Scores of the rows of a tile with the codes of some blocks of panels, less what they may be wrong by.
template <int count>
struct TileScores {
  Floats best[count];               ///< of the block at hand, by lane
  float bests[count][kTileBlocks];  ///< of each block
  alignas(64) float scores[count][kTileBlocks * kBlockCodes];
};

/// Keeps the scores of each row r with the codes of the panel that `facts` describes.
template <int words, int count, int panels>
inline void keep_scores(const PreparedRow* rows, const PreparedPanel& facts,
                        const TileSums<words, count, panels>& sums, int p, int64_t place,
                        TileScores<count>& to) {
#pragma GCC unroll 8
  for (int r = 0; r < count; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Words total = total_of<words>(sums.of[0][r][p][v]);
#pragma GCC unroll 4
      for (int c = 1; c < kChains<count>; ++c) total += total_of<words>(sums.of[c][r][p][v]);
      const int64_t first = int64_t{v} * kLanes;
      const Floats product = __builtin_convertvector(reinterpret_cast<Ints>(total), Floats);
      const Floats score = product * (load<Floats>(facts.scales + first) * rows[r].unit) -
                           load<Floats>(facts.offsets + first);
      store(to.scores[r] + place + first, score);
      to.best[r] = maximum(score, to.best[r]);
    }
  }
}

template <int words, int count, int panels>
TORCHVQ_PREPARED_TARGET inline void score_panels(const PreparedRow* rows,
                                                 const PreparedCodes& codes, int64_t panel,
                                                 int64_t place, TileScores<count>& to) {
  constexpr int kSteps = kChains<count>;
  TileSums<words, count, panels> sums;
  start_sums(rows, sums);
  const int64_t blocks = prepared_blocks(codes.dim), stride = prepared_panel_bytes(codes.dim);
  const uint8_t* const bytes = codes.panel(panel) + sizeof(PreparedPanel);
  int64_t block = 0;
  for (; block + kSteps <= blocks; block += kSteps) {
#pragma GCC unroll 4
    for (int c = 0; c < kSteps; ++c) add_block(rows, bytes, stride, block + c, sums.of[c]);
  }
  for (; block < blocks; ++block) add_block(rows, bytes, stride, block, sums.of[0]);
#pragma GCC unroll 2
  for (int p = 0; p < panels; ++p) {
    keep_scores(rows, codes.facts(panel + p), sums, p, place + p * kPreparedCodes, to);
  }
}

/// The hits that screen() collects.
struct Hits {
  PreparedHit* at;
  int64_t found, capacity;

  /// Adds the codes of a row, starting at `first`, whose scores plus `reach` come to `floor`;
  /// false if there is no room.
  bool collect(const float* scores, int64_t count, float reach, float floor, int32_t row,
               int32_t first) {
    constexpr int kTogether = 4;
    // With what the rounding of differences costs.
    const float least = floor - reach - (fabsf(floor) + reach) * 1e-6F;
    int64_t i = 0;
    for (; i + kTogether * kLanes <= count; i += kTogether * kLanes) {
      if (!add(reaching_of<kTogether>(scores + i, least), scores, i, reach, row, first))
        return false;
    }
    for (; i < count; i += kLanes) {
      if (!add(reaching(scores + i, least), scores, i, reach, row, first)) return false;
    }
    return true;
  }

 private:
  bool add(uint64_t lanes, const float* scores, int64_t place, float reach, int32_t row,
           int32_t first) {
    if (lanes == 0) return true;
    if (found + kSpareHits > capacity) return false;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int64_t own = place + __builtin_ctzll(lanes);
      at[found++] = {row, first + static_cast<int32_t>(own), scores[own] + reach};
    }
    return true;
  }
};

/// Scores rows [first, first + count) with the panels [begin, end) of a block.
template <int words, int count>
TORCHVQ_PREPARED_TARGET void score_block(const PreparedRow* rows, const PreparedCodes& codes,
                                         int64_t begin, int64_t end, int64_t block,
                                         TileScores<count>& tile) {
  constexpr int kTogether = count == 1 ? 1 : kPanels;
  for (auto& best : tile.best) best = Floats{} - FLT_MAX;
  int64_t panel = begin, place = block * kBlockCodes;
  for (; panel + kTogether <= end; panel += kTogether, place += kTogether * kPreparedCodes) {
    score_panels<words, count, kTogether>(rows, codes, panel, place, tile);
  }
  for (; panel < end; ++panel, place += kPreparedCodes) {
    score_panels<words, count, 1>(rows, codes, panel, place, tile);
  }
  for (int r = 0; r < count; ++r) tile.bests[r][block] = largest_lane(tile.best[r])[0];
}

/// Screens rows [first, first + count) with the panels [begin, end) of up to kTileBlocks blocks: raises the floors by
/// all of them before it looks for hits.
template <int words, int count>
TORCHVQ_PREPARED_TARGET bool screen_tile(const PreparedCodes& codes, const PreparedBlock* blocks,
                                         const PreparedRows& rows, int64_t first, int64_t begin,
                                         int64_t end, Hits& hits) {
  TileScores<count> tile;
  int64_t block_count = 0;
  for (int64_t panel = begin; panel < end; panel += kBlockPanels) {
    const int64_t last = panel + kBlockPanels < end ? panel + kBlockPanels : end;
    score_block<words>(rows.rows + first, codes, panel, last, block_count++, tile);
  }
  for (int r = 0; r < count; ++r) {
    const PreparedRow& row = rows.rows[first + r];
    float& floor = rows.floors[first + r];
    float reach[kTileBlocks];
    for (int64_t b = 0; b < block_count; ++b) {
      reach[b] = blocks[b].slope * row.slope;
      if constexpr (words == 1) reach[b] += blocks[b].norm * row.rounding;
      // A score includes the intercept through the offset; the lower bound needs it with the
      // opposite sign.
      const float own = tile.bests[r][b] - (reach[b] + 2 * blocks[b].intercept);
      floor = own > floor ? own : floor;
    }
    for (int64_t b = 0; b < block_count; ++b) {
      const float best = tile.bests[r][b];
      const bool none = best == -FLT_MAX;  // all codes are left out
      if (none || best + reach[b] < floor) continue;
      const int64_t panel = begin + b * kBlockPanels;
      const int64_t panels = end - panel < kBlockPanels ? end - panel : kBlockPanels;
      if (!hits.collect(tile.scores[r] + b * kBlockCodes, panels * kPreparedCodes, reach[b], floor,
                        static_cast<int32_t>(first + r),
                        static_cast<int32_t>(panel * kPreparedCodes))) {
        return false;
      }
    }
  }
  return true;
}

template <int words>
TORCHVQ_PREPARED_TARGET int64_t screen_rows(const PreparedCodes& codes, const PreparedBlock* blocks,
                                            const PreparedRows& rows, int64_t begin, int64_t end,
                                            Hits hits) {
  constexpr int kTogether = kLanes == 16 ? 8 / words : 2;
  constexpr int64_t kStep = kTileBlocks * kBlockPanels;
  for (int64_t block = begin; block < end; block += kStep) {
    const PreparedBlock* const facts = blocks + block / kBlockPanels;
    const int64_t last = block + kStep < end ? block + kStep : end;
    int64_t r = 0;
    for (; r + kTogether <= rows.count; r += kTogether) {
      if (!screen_tile<words, kTogether>(codes, facts, rows, r, block, last, hits)) return -1;
    }
    if constexpr (kTogether > 4) {
      for (; r + 4 <= rows.count; r += 4) {
        if (!screen_tile<words, 4>(codes, facts, rows, r, block, last, hits)) return -1;
      }
    }
    if constexpr (kTogether > 2) {
      for (; r + 2 <= rows.count; r += 2) {
        if (!screen_tile<words, 2>(codes, facts, rows, r, block, last, hits)) return -1;
      }
    }
    for (; r < rows.count; ++r) {
      if (!screen_tile<words, 1>(codes, facts, rows, r, block, last, hits)) return -1;
    }
  }
  return hits.found;
}

int64_t screen(const PreparedCodes& codes, const PreparedBlock* blocks, const PreparedRows& rows,
               int64_t begin, int64_t end, PreparedHit* hits, int64_t found, int64_t capacity) {
#if defined(__AVX512F__)
  if (rows.bytes) {
    return screen_rows<1>(codes, blocks, rows, begin, end, {hits, found, capacity});
  }
#endif
  return screen_rows<2>(codes, blocks, rows, begin, end, {hits, found, capacity});
}

// Distances --------------------------------------------------------------------------------------

template <int count>
inline void distances_of(const float* row, int64_t dim, const float* const* codes,
                         float* distances) {
  Floats sum[count] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Floats value = load<Floats>(row + d);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      const Floats difference = load<Floats>(codes[i] + d) - value;
      sum[i] += difference * difference;
    }
  }
  for (int i = 0; i < count; ++i) {
    float rest = 0;
    for (int64_t j = d; j < dim; ++j) {
      const float difference = codes[i][j] - row[j];
      rest += difference * difference;
    }
    distances[i] = sum_lanes<float, kLanes>(sum[i]) + rest;
  }
}

void distances(const float* row, int64_t dim, const float* const* codes, int64_t count,
               float* distances) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) distances_of<4>(row, dim, codes + i, distances + i);
  for (; i < count; ++i) distances_of<1>(row, dim, codes + i, distances + i);
}

}  // namespace
}  // namespace torchvq::kernels

#if defined(__AVX512F__)
#include "kernels/cpu/rounded_codes-inl.h"
#endif

namespace torchvq::kernels {

PreparedScan TORCHVQ_LEVEL_NAME(prepared_scan)() {
#if defined(__AVX512F__)
  return {center_row, round_row, round_row_bytes, screen, distances, round_codes};
#else
  return {center_row, round_row, nullptr, screen, distances, nullptr};
#endif
}

}  // namespace torchvq::kernels
