// Screening kernels of nearest_code: float32, within the rounding bound of nearest_code_bound.h.
// Raw pointers in and out; one table of functions per instruction set.
// Layout. A vector has `lanes` floats. Codes lie in panels of `panel` = lanes * vectors codes:
// value d of code j of a panel is values[d * panel + j]; the last panel is padded with codes whose
// half norm is infinite. Rows lie one after the other in blocks whose count is a multiple of
// `tile_rows`, padded with zeros. `depth` is the length of a packed row or code: dim, or dim + 1
// where a score contains its own error (own_errors_ of nearest_code_search.h). Scores are
// larger-is-better: <row, code> - half_norm.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Between these squared norms of float64 vectors nothing is lost to underflow or overflow.
constexpr double kLeastWideSquare = 1e-280, kMostWideSquare = 1e300;

struct ScanResult {
  float best;        ///< largest score
  float runner_up;   ///< largest score of any other code (with groups: outside the winner's group)
  int32_t position;  ///< winner's place in the panels (with groups: of the first code of its group)
};

/// `count` codes of a codebook that ends at `end`, by ascending `index`; position p of the
/// panels holds code index[p].
template <typename T>
struct CodeListOf {
  const T *codebook, *end;
  int64_t dim;
  const int32_t* index;
  int64_t count;
};
using CodeList = CodeListOf<float>;

/// Codes [first, first + count) of a codebook, unpacked. The score of a row is <row, code> * scale
/// + (norm of the row) * slope - offset, which includes its error and so is an upper bound.
struct UnpackedCodes {
  const float* values;  ///< of code `first`
  int64_t first, count, dim;
  const float *scales, *slopes, *offsets;  ///< (count,)
};

/// Rows packed by pack_codes, and their norms, rounded up; panels and norms are padded with zeros.
struct UnpackedRows {
  const float *panels, *norms;
  int64_t count;
};

/// What reads rows and codes as they are given. Those of float64 become float32 when they are packed: one
/// more rounding of each value, after the centre was subtracted. Unpacked ones are compared in float64, and
/// their scores are rounded.
template <typename T>
struct NearestCodeReader {
  /// For each code k in [begin, end), ignoring `index`: its sum of squares (infinity or NaN if it
  /// is not finite or overflows) and a hash of its values that is the same for -0 and 0.
  void (*code_facts)(const CodeListOf<T>& codes, int64_t begin, int64_t end, T* squares,
                     uint32_t* hash);

  /// sum[d] += sum over positions [begin, end) of the codes' values.
  void (*add_codes)(const CodeListOf<T>& codes, int64_t begin, int64_t end, float* sum);

  /// Packs codes minus `center`, which is readable up to a multiple of `lanes`, into panels [begin,
  /// end). squares[position] is set to the squared norm of the packed code, and to 0 for padding.
  void (*pack_codes)(const CodeListOf<T>& codes, const float* center, int64_t depth, int64_t begin,
                     int64_t end, float* panels, double* squares);
  /// The same for unit codes as the contract defines them; `zero` is a center of zeros.
  void (*pack_unit_codes)(const CodeListOf<T>& codes, const float* zero, int64_t depth,
                          int64_t begin, int64_t end, float* panels, double* squares);

  /// Packs rows[r] minus `center` for r < count, at most tile_rows. squares[r] is set to the
  /// squared norm of the packed row, not finite if the difference is not; such a row is packed as
  /// zeros. With depth > dim the norm, rounded up, is appended.
  void (*pack_rows)(const T* const* rows, int64_t count, int64_t dim, const float* center,
                    int64_t depth, float* packed, double* squares);
  /// The same for unit rows as the contract defines them, without a centre; of float64, not finite if
  /// the squared norm is lost to underflow.
  void (*pack_unit_rows)(const T* const* rows, int64_t count, int64_t dim, int64_t depth,
                         float* packed, double* squares);

  /// scores[k] = -||row - code k||^2 for k in [begin, end) of an unpacked codebook of `size` codes.
  /// For few rows, where packing would cost more than the scan.
  void (*score_row)(const T* row, int64_t dim, const T* codebook, int64_t size, int64_t begin,
                    int64_t end, float* scores);
  /// inverse[k] = 1 / ||code k||, and scores[k] = <row, code k> inverse[k]. The first returns false if a norm is not
  /// finite, or so small or large that its square is lost.
  bool (*inverse_norms)(int64_t dim, const T* codebook, int64_t size, int64_t begin, int64_t end,
                        T* inverse);
  void (*angle_row)(const T* row, int64_t dim, const T* codebook, int64_t size, int64_t begin,
                    int64_t end, const T* inverse, float* scores);
};

struct NearestCodeScan : NearestCodeReader<float> {
  NearestCodeReader<double> wide;

  int32_t lanes, vectors, panel, tile_rows;

  /// Scans packed rows against all panels. `state` is scratch memory of state_bytes(row_count),
  /// aligned to 64 bytes. With groups, codes that share panel and lane compete as one.
  void (*scan)(const float* rows, int64_t row_count, const float* panels, const float* half_norms,
               int64_t panel_count, int64_t depth, bool groups, void* state, ScanResult* results);
  int64_t (*state_bytes)(int64_t row_count);
  /// After a scan without groups: writes the positions of all codes whose scores are at least
  /// `limit`, at most `lanes`, in any order, and returns their number; -1 if the row's state does
  /// not hold them all, because two of them share a lane.
  int64_t (*rivals)(const void* state, int64_t row, float limit, int32_t* positions);

  /// Scores of tile_rows packed rows against all panels: scores[r * panel_count * panel +
  /// position].
  void (*score)(const float* rows, const float* panels, const float* half_norms,
                int64_t panel_count, int64_t depth, float* scores);

  /// Coarse screening; null where it does not pay. Packed rows and panels are multiplied by a scale
  /// and rounded to 16-bit integers: each integer, and the root of the sum of their squares, must
  /// stay below kCoarseNorm. A row or code takes coarse_words(dim) words in the layout that the
  /// instructions need; rows are read up to a multiple of 32. A score is the exact sum of the
  /// products times units[row], minus half_norm. The rounding error is the squared norm of the
  /// difference, in scaled units: errors[row] for rows, and for codes the largest one.
  void (*coarse_scan)(const int32_t* rows, const float* units, int64_t row_count,
                      const int32_t* codes, const float* half_norms, int64_t panel_count,
                      int64_t words, void* state, ScanResult* results);
  /// As `score`, of rows and codes in the layout of coarse_scan; null where that is, and with AMX.
  void (*coarse_score)(const int32_t* rows, const float* units, const int32_t* codes,
                       const float* half_norms, int64_t panel_count, int64_t words, float* scores);
  int64_t (*coarse_words)(int64_t dim);
  float (*coarse_codes)(const float* panels, int64_t panel_count, int64_t dim, int64_t depth,
                        float scale, int32_t* to);
  void (*coarse_rows)(const float* rows, int64_t row_count, int64_t dim, int64_t depth,
                      const float* scales, int32_t* to, float* errors);

  /// For some hundred rows: scans a range of codes and keeps the best of each row in `state`, of
  /// state_bytes(panels * vectors). Positions are indices of codes.
  void (*start_unpacked)(int64_t row_count, void* state);
  void (*scan_unpacked)(const UnpackedCodes& codes, const UnpackedRows& rows, void* state);
  void (*finish_unpacked)(int64_t row_count, const void* state, ScanResult* results);
  /// Scores of up to `lanes` rows; those of code k begin at scores[k * lanes].
  void (*score_unpacked)(const UnpackedCodes& codes, const UnpackedRows& rows, float* scores);
  /// Norms of `count` codes, and the squared norms of their differences from `center`.
  void (*unpacked_norms)(const float* codes, int64_t count, int64_t dim, const float* center,
                         float* norms, float* distances);

  /// Largest of `count` values, skipping NaN; -infinity if there is none.
  float (*largest)(const float* values, int64_t count);
  /// Writes the positions of the values that are at least `limit`, in order; returns their number.
  int64_t (*at_least)(const float* values, int64_t count, float limit, int32_t* places);
};

NearestCodeScan nearest_code_scan_default();
NearestCodeScan nearest_code_scan_avx2();
NearestCodeScan nearest_code_scan_avx512();
NearestCodeScan nearest_code_scan_amx();

inline NearestCodeScan nearest_code_scan(CpuLevel level) {
#if defined(TORCHVQ_HAVE_X86_LEVELS)
  if (level == CpuLevel::kAmx) return nearest_code_scan_amx();
#endif
  return TORCHVQ_AT_LEVEL(level, nearest_code_scan)();
}

}  // namespace torchvq::kernels
