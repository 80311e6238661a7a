// Source of the screening kernels; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME.
#include "kernels/cpu/nearest_code_pack-inl.h"
#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

struct RowState {
  Floats best, runner_up;
  Ints position;
};

void start(RowState& row) {
  row.best = Floats{} - INFINITY;
  row.runner_up = Floats{} - INFINITY;
  row.position = Ints{};
}

/// kTileRows x kPanel scores, in registers.
struct Tile {
  Floats score[kTileRows][kVectors];
};

inline void score_tile(const float* rows, const float* panel, const float* half_norms,
                       int64_t depth, Tile& tile) {
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) tile.score[r][c] = -load<Floats>(half_norms + c * kLanes);
  }
  for (int64_t d = 0; d < depth; ++d) {
    Floats code[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) code[c] = load<Floats>(panel + d * kPanel + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Floats value = Floats{} + rows[r * depth + d];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) tile.score[r][c] += value * code[c];
    }
  }
}

/// Writes the scores of a tile where `score` of nearest_code_scan.h wants them.
inline void store_tile(const Tile& tile, int64_t panel, int64_t panel_count, float* scores) {
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      store(scores + (r * panel_count + panel) * kPanel + c * kLanes, tile.score[r][c]);
    }
  }
}

inline void take(RowState& row, Floats score, Ints position) {
  const Ints better = row.best < score;
  row.runner_up = maximum(row.runner_up, better ? row.best : score);
  row.best = maximum(row.best, score);
  row.position = better ? position : row.position;
}

template <bool groups>
inline void take_tile(const Tile& tile, int32_t first, RowState* rows) {
  Ints position[kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) position[c] = Ints{} + (first + c * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    RowState row = rows[r];
    if constexpr (groups) {
      Floats score = tile.score[r][0];
#pragma GCC unroll 4
      for (int c = 1; c < kVectors; ++c) score = maximum(score, tile.score[r][c]);
      take(row, score, position[0]);
    } else {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) take(row, tile.score[r][c], position[c]);
    }
    rows[r] = row;
  }
}

/// Merges the lanes of one row. Either of two equal scores may win: a gap of 0 is always
/// decided by exact scores.
ScanResult finish(const RowState& row) {
  Ints lane{};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  const Floats best = largest_lane(row.best);
  const Ints position = row.position + lane;
  const Ints winner = largest_lane<Ints>(row.best == best ? position : Ints{} - 1);
  const Floats second = largest_lane(position == winner ? row.runner_up : row.best);
  return {best[0], second[0], winner[0]};
}

template <bool groups>
void scan_rows(const float* rows, int64_t row_count, const float* panels, const float* half_norms,
               int64_t panel_count, int64_t depth, RowState* states) {
  for (int64_t panel = 0; panel < panel_count; ++panel) {
    const float* values = panels + panel * kPanel * depth;
    for (int64_t row = 0; row < row_count; row += kTileRows) {
      Tile tile;
      score_tile(rows + row * depth, values, half_norms + panel * kPanel, depth, tile);
      take_tile<groups>(tile, static_cast<int32_t>(panel * kPanel), states + row);
    }
  }
}

void scan(const float* rows, int64_t row_count, const float* panels, const float* half_norms,
          int64_t panel_count, int64_t depth, bool groups, void* state, ScanResult* results) {
  auto* states = static_cast<RowState*>(state);
  for (int64_t r = 0; r < row_count; ++r) start(states[r]);
  (groups ? scan_rows<true> : scan_rows<false>)(rows, row_count, panels, half_norms, panel_count,
                                                depth, states);
  for (int64_t r = 0; r < row_count; ++r) results[r] = finish(states[r]);
}

int64_t rivals(const void* state, int64_t row, float limit, int32_t* positions) {
  const RowState& own = static_cast<const RowState*>(state)[row];
  int64_t found = 0;
  for (int l = 0; l < kLanes; ++l) {
    if (own.runner_up[l] >= limit) return -1;
    if (own.best[l] >= limit) positions[found++] = own.position[l] + l;
  }
  return found;
}

int64_t state_bytes(int64_t row_count) {
  return row_count * static_cast<int64_t>(sizeof(RowState));
}

}  // namespace
}  // namespace torchvq::kernels

#include "kernels/cpu/nearest_code_coarse-inl.h"
#if defined(__AVX512F__)
#include "kernels/cpu/nearest_code_amx-inl.h"
#endif
#include "kernels/cpu/nearest_code_few_rows-inl.h"
#include "kernels/cpu/nearest_code_unpacked-inl.h"

namespace torchvq::kernels {
namespace {

void score(const float* rows, const float* panels, const float* half_norms, int64_t panel_count,
           int64_t depth, float* scores) {
  for (int64_t panel = 0; panel < panel_count; ++panel) {
    Tile tile;
    score_tile(rows, panels + panel * kPanel * depth, half_norms + panel * kPanel, depth, tile);
    store_tile(tile, panel, panel_count, scores);
  }
}

float largest(const float* values, int64_t count) {
  Floats best[2] = {Floats{} - INFINITY, Floats{} - INFINITY};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (int j = 0; j < 2; ++j) {
      const Floats value = load<Floats>(values + i + j * kLanes);
      best[j] = value > best[j] ? value : best[j];
    }
  }
  float result = -INFINITY;
  for (int l = 0; l < kLanes; ++l) {
    for (int j = 0; j < 2; ++j) result = best[j][l] > result ? best[j][l] : result;
  }
  for (; i < count; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

}  // namespace

NearestCodeScan TORCHVQ_LEVEL_NAME(nearest_code_scan)() {
  NearestCodeScan table;
  table.lanes = kLanes;
  table.vectors = kVectors;
  table.panel = kPanel;
  table.tile_rows = kTileRows;
  set_packing<float>(table);
  table.pack_unit_codes = pack_unit_codes;
  table.pack_unit_rows = pack_unit_rows;
  set_packing<double>(table.wide);
  table.wide.pack_unit_codes = pack_unit_wide_codes;
  table.wide.pack_unit_rows = pack_unit_wide_rows;
  table.scan = scan;
  table.state_bytes = state_bytes;
  table.rivals = rivals;
  table.score = score;
  table.largest = largest;
  table.at_least = places_reaching<Side::kAtLeast>;
  set_coarse(table);
  set_few_rows<float>(table);
  set_few_rows<double>(table.wide);
  set_unpacked(table);
  return table;
}

#if defined(__AVX512F__)
NearestCodeScan nearest_code_scan_amx() {
  auto table = nearest_code_scan_avx512();
  set_amx(table);
  return table;
}
#endif

}  // namespace torchvq::kernels
