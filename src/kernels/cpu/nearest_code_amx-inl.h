// Coarse screening on AMX tiles: the same exact sums of products of 16-bit integers as nearest_code_coarse-inl.h, four
// times as many at a time. Included by nearest_code_scan-inl.h where there is AVX-512.
//
// Tiles multiply 8-bit integers. With v = 256 h + l, h and l in [-128, 127], a product of two sums is 65536 hh + 256
// (hl + lh) + ll: three 32-bit sums. They may wrap around, but their total, which pairs of 16 bits add up to as well,
// does not, so arithmetic modulo 2^32 gives it exactly.
//
// Layout. A row or code takes 128 bytes per 64 dimensions, padded with zeros. Rows: 64 values of h, then 64 of l.
// Codes, in blocks of 16: for each 64 dimensions 16 lines of h, then 16 of l; line q holds dimensions 4q .. 4q + 3 of
// the 16 codes.
#pragma once

#include <immintrin.h>

namespace torchvq::kernels {
namespace {

constexpr int64_t kTileDims = 64, kTileSide = 16, kTileBytes = 1024;

int64_t amx_words(int64_t dim) { return (dim + kTileDims - 1) / kTileDims * 32; }

/// The high digit; the low one is `value - 256 * high`.
inline Ints upper_digit(Ints value) { return (value + 128) >> 8; }

/// Packs the low bytes of four numbers into each lane, the first one lowest.
inline Ints bytes_of(const Ints* four) {
  return (four[0] & 0xFF) | ((four[1] & 0xFF) << 8) | ((four[2] & 0xFF) << 16) | (four[3] << 24);
}

float amx_codes(const float* panels, int64_t panel_count, int64_t dim, int64_t depth, float scale,
                int32_t* to) {
  const int64_t chunks = (dim + kTileDims - 1) / kTileDims;
  Floats largest{};
  for (int64_t panel = 0; panel < panel_count; ++panel, panels += depth * kPanel) {
    for (int64_t j = 0; j < kPanel; j += kTileSide) {
      Floats error{};
      for (int64_t chunk = 0; chunk < chunks; ++chunk, to += 2 * kTileBytes / 4) {
        for (int64_t q = 0; q < kTileSide; ++q) {
          Ints upper[4] = {}, lower[4] = {};
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t d = chunk * kTileDims + 4 * q + i;
            if (d >= dim) continue;
            const Ints value =
                rounded_with_error(load<Floats>(panels + d * kPanel + j) * scale, error);
            upper[i] = upper_digit(value);
            lower[i] = value - (upper[i] << 8);
          }
          store(to + q * kLanes, bytes_of(upper));
          store(to + kTileBytes / 4 + q * kLanes, bytes_of(lower));
        }
      }
      largest = maximum(largest, error);
    }
  }
  return largest_lane(largest)[0];
}

void amx_rows(const float* rows, int64_t row_count, int64_t dim, int64_t depth, const float* scales,
              int32_t* to, float* errors) {
  using Bytes = Vector<int8_t, kLanes>;
  for (int64_t r = 0; r < row_count; ++r, rows += depth, to += amx_words(dim)) {
    auto* const digits = reinterpret_cast<int8_t*>(to);
    Floats error{};
    for (int64_t d = 0; d < amx_words(dim) * 2; d += kLanes) {
      Floats scaled{};
      if (d + kLanes <= dim) {
        scaled = load<Floats>(rows + d);
      } else if (d < dim) {
        memcpy(&scaled, rows + d, sizeof(float) * static_cast<size_t>(dim - d));
      }
      const Ints value = rounded_with_error(scaled * scales[r], error);
      const Ints upper = upper_digit(value);
      int8_t* const at = digits + d / kTileDims * 2 * kTileDims + d % kTileDims;
      store(at, __builtin_convertvector(upper, Bytes));
      store(at + kTileDims, __builtin_convertvector(value - (upper << 8), Bytes));
    }
    errors[r] = sum_lanes<float, kLanes>(error);
  }
}

/// All tiles have 16 lines of 64 bytes.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int64_t kBlockRows = 2 * kTileSide;

/// Sums of a block of rows with 16 codes: hh, hl + lh, ll.
struct alignas(64) TileSums {
  int32_t sum[3][kBlockRows][kTileSide];
};

#define TORCHVQ_AMX_TARGET __attribute__((target("amx-tile,amx-int8")))

// Tiles 0 to 2 and 3 to 5 hold the sums of two tiles of rows, tile 6 rows, tile 7 codes: each tile of codes is loaded
// once for both tiles of rows.
TORCHVQ_AMX_TARGET inline void multiply_block(const int32_t* rows, int64_t words,
                                              const int32_t* codes, TileSums& sums) {
  const auto* first = reinterpret_cast<const char*>(rows);
  const auto* second = reinterpret_cast<const char*>(rows + kTileSide * words);
  const auto* code = reinterpret_cast<const char*>(codes);
  const int64_t stride = words * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t word = 0; word < words; word += 32) {
    _tile_loadd(7, code, kTileDims);
    _tile_loadd(6, first, stride);
    _tile_dpbssd(0, 6, 7);
    _tile_loadd(6, first + kTileDims, stride);
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(6, second, stride);
    _tile_dpbssd(3, 6, 7);
    _tile_loadd(6, second + kTileDims, stride);
    _tile_dpbssd(4, 6, 7);
    _tile_loadd(7, code + kTileBytes, kTileDims);
    _tile_loadd(6, first, stride);
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(6, first + kTileDims, stride);
    _tile_dpbssd(2, 6, 7);
    _tile_loadd(6, second, stride);
    _tile_dpbssd(4, 6, 7);
    _tile_loadd(6, second + kTileDims, stride);
    _tile_dpbssd(5, 6, 7);
    first += 2 * kTileDims;
    second += 2 * kTileDims;
    code += 2 * kTileBytes;
  }
  _tile_stored(0, sums.sum[0][0], kTileDims);
  _tile_stored(1, sums.sum[1][0], kTileDims);
  _tile_stored(2, sums.sum[2][0], kTileDims);
  _tile_stored(3, sums.sum[0][kTileSide], kTileDims);
  _tile_stored(4, sums.sum[1][kTileSide], kTileDims);
  _tile_stored(5, sums.sum[2][kTileSide], kTileDims);
}

/// Converts the sums of `count` rows with the codes of a panel to scores and updates the rows' best.
inline void take_sums(const TileSums* sums, const float* units, const float* half_norms,
                      int32_t first, int64_t count, RowState* states) {
  for (int64_t r = 0; r < count; ++r) {
    RowState row = states[r];
    const Floats unit = Floats{} + units[r];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      const auto part = [&](int i) { return load<Words>(sums[c].sum[i][r]); };
      const auto total = reinterpret_cast<Ints>((part(0) << 16) + (part(1) << 8) + part(2));
      const Floats half_norm = load<Floats>(half_norms + c * kLanes);
      take(row, __builtin_convertvector(total, Floats) * unit - half_norm,
           Ints{} + static_cast<int32_t>(first + c * kLanes));
    }
    states[r] = row;
  }
}

TORCHVQ_AMX_TARGET void amx_scan(const int32_t* rows, const float* units, int64_t row_count,
                                 const int32_t* codes, const float* half_norms, int64_t panel_count,
                                 int64_t words, void* state, ScanResult* results) {
  const TileConfiguration configuration;
  _tile_loadconfig(&configuration);
  auto* states = static_cast<RowState*>(state);
  for (int64_t r = 0; r < row_count; ++r) start(states[r]);
  TileSums sums[kVectors];
  for (int64_t panel = 0; panel < panel_count; ++panel, codes += kPanel * words) {
    for (int64_t row = 0; row < row_count; row += kBlockRows) {
      for (int c = 0; c < kVectors; ++c) {
        multiply_block(rows + row * words, words, codes + c * kTileSide * words, sums[c]);
      }
      const int64_t left = row_count - row;
      take_sums(sums, units + row, half_norms + panel * kPanel,
                static_cast<int32_t>(panel * kPanel), left < kBlockRows ? left : kBlockRows,
                states + row);
    }
  }
  _tile_release();
  for (int64_t r = 0; r < row_count; ++r) results[r] = finish(states[r]);
}

void set_amx(NearestCodeScan& table) {
  table.coarse_words = amx_words;
  table.coarse_codes = amx_codes;
  table.coarse_rows = amx_rows;
  table.coarse_scan = amx_scan;
  table.coarse_score = nullptr;
}

}  // namespace
}  // namespace torchvq::kernels
