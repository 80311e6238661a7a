// The shared memory of a block of residual_stack.cu: the residuals of its rows, their copies
// rounded to half precision, and candidates for the nearest code of each.
#pragma once

#include "kernels/cuda/nearest_code_exact-inl.h"
#include "kernels/cuda/nearest_code_sums-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostClose = 512;  // close calls of a tile that are decided individually

/// Division of a tile of `rows` rows by kTileCodes codes among the eight warps of a block.
template <int rows>
struct StackShape {
  static constexpr int kRows = rows;
  static constexpr int kWarpsOfRows = rows > 32 ? rows / 32 : 1;
  static constexpr int kWarpsOfCodes = kHalfThreads / kWarp / kWarpsOfRows;
  static constexpr int kWarpRows = rows / kWarpsOfRows;
  static constexpr int kWarpCodes = kTileCodes / kWarpsOfCodes;
  static constexpr int kRowFragments = kWarpRows / 16, kCodeFragments = kWarpCodes / 8;
  static constexpr int kLanes = kWarpsOfCodes * 4;  // threads that share a row

  __device__ static int warp_row() { return warp_of_block() / kWarpsOfCodes * kWarpRows; }
  __device__ static int warp_code() { return warp_of_block() % kWarpsOfCodes * kWarpCodes; }
  /// The row of the tile to which this thread's sums [fragment][.][r * 2] belong.
  __device__ static int row(int fragment, int r) {
    return warp_row() + fragment * 16 + r * 8 + lane_of_warp() / 4;
  }
  __device__ static int lane() { return warp_of_block() % kWarpsOfCodes * 4 + lane_of_warp() % 4; }
};

/// State of a row whose nearest code is not known yet, or does not exist.
enum RowState : int32_t {
  kLostRow = -1,   ///< not finite
  kNoRow = -2,     ///< masked, or beyond the last
  kCloseRow = -3,  ///< its candidates are in the list of close calls
  kOpenRow = -4,   ///< its candidates are listed by a second scan, by their limit
  kExactRow = -5,  ///< any code may be the nearest
};

constexpr int kStackStage = kTileCodes * kTileStride;  // numbers per stage: codes only
constexpr size_t kStackScratch = sizeof(uint16_t) * kStages * kStackStage;

/// A row of the residual; with `unit`, divided by its norm as by make_unit_rows.
template <bool unit>
struct RowView {
  const float* left;
  double norm = 1;

  __device__ float operator[](int64_t d) const {
    if constexpr (!unit) return left[d];
    return norm == 0 ? 0.0f : static_cast<float>(left[d] / norm);
  }
};

struct StackTile {
  uint16_t* halves;  ///< (rows, half_stride)
  void* scratch;     ///< stages of codes, then contests, scores, and decide_rows
  double* lengths;   ///< (rows,): norms of the uncentred rows, for cosine
  float* left;       ///< (rows, stride)
  float *norms, *losses, *units, *limits;  ///< (rows,)
  int32_t *found, *exact;  ///< (rows,): index or RowState; list of rows that are kExactRow
  int32_t *close_rows, *close_codes;  ///< (kMostClose,)
  int32_t* counts;                    ///< [3]: of close calls, open rows and exact rows
  int64_t stride;                     ///< odd, so that adjacent rows lie in different banks
  int half_stride;                    ///< 16 bytes modulo 64, as for kTileStride

  __device__ StackTile(unsigned char* memory, int rows, int64_t dim, int64_t depth)
      : stride(dim | 1), half_stride(static_cast<int>(depth) + 8) {
    halves = reinterpret_cast<uint16_t*>(memory);
    memory += sizeof(uint16_t) * rows * half_stride;
    scratch = memory;
    lengths = reinterpret_cast<double*>(memory + kStackScratch);
    left = reinterpret_cast<float*>(lengths + rows);
    norms = left + rows * stride;
    losses = norms + rows;
    units = losses + rows;
    limits = units + rows;
    found = reinterpret_cast<int32_t*>(limits + rows);
    exact = found + rows;
    close_rows = exact + rows;
    close_codes = close_rows + kMostClose;
    counts = close_codes + kMostClose;
  }

  static constexpr size_t bytes(int64_t rows, int64_t dim, int64_t depth) {
    const auto of_row = sizeof(uint16_t) * (depth + 8) + sizeof(double) +
                        sizeof(float) * ((dim | 1) + 4) + sizeof(int32_t) * 2;
    return kStackScratch + rows * of_row + sizeof(int32_t) * (2 * kMostClose + 4);
  }

  template <bool unit>
  __device__ RowView<unit> row(int at) const {
    RowView<unit> view{left + at * stride};
    if constexpr (unit) view.norm = lengths[at];
    return view;
  }

  /// Adds a code that may be the nearest of a row; if the list is full, the row
  /// falls back to kExactRow.
  __device__ void add_close(int row, int32_t code) const {
    const int place = atomicAdd(&counts[0], 1);
    if (place >= kMostClose) {
      found[row] = kExactRow;
      return;
    }
    close_rows[place] = row;
    close_codes[place] = code;
  }
  __device__ int close_calls() const { return min(counts[0], kMostClose); }
};
static_assert(kStackScratch >= Contests::bytes(64, StackShape<64>::kLanes));
static_assert(kStackScratch >= Contests::bytes(32, StackShape<32>::kLanes));
static_assert(kStackScratch >= sizeof(double) * kMostClose);
static_assert(kStackScratch >= exact_shared<float, kExactRows>() && kExactThreads == kHalfThreads);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
