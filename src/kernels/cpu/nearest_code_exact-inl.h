// Source of the deciding kernels; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Compiled without contraction: the order and rounding of every operation below
// is part of the contract.
#include "kernels/cpu/nearest_code_exact.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kWideRows = 4;
constexpr int kWideVectors = kRegisters == 32 ? 4 : 2;
constexpr int kWidePanel = kHalfLanes * kWideVectors;

/// Several rows together: the sum of a row is a chain of additions, each of which waits for the one before.
template <int count, typename T>
inline void unit_rows_of(const T* const* rows, int64_t dim, T* const* units) {
  double squares[count] = {};
  for (int64_t d = 0; d < dim; ++d) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const double value = rows[i][d];
      squares[i] += value * value;
    }
  }
  for (int i = 0; i < count; ++i) {
    const double norm = sqrt(squares[i]);
    const T* const row = rows[i];
    T* const unit = units[i];
    for (int64_t d = 0; d < dim; ++d) unit[d] = norm == 0 ? T(0) : static_cast<T>(row[d] / norm);
  }
}

template <typename T>
void unit_row(const T* row, int64_t dim, T* unit) {
  unit_rows_of<1, T>(&row, dim, &unit);
}

template <typename T>
void unit_rows(const T* const* rows, int64_t count, int64_t dim, T* const* units) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) unit_rows_of<8, T>(rows + i, dim, units + i);
  for (; i + 2 <= count; i += 2) unit_rows_of<2, T>(rows + i, dim, units + i);
  for (; i < count; ++i) unit_rows_of<1, T>(rows + i, dim, units + i);
}

template <int count, bool cosine, typename T>
inline void pair_scores_of(const T* row, int64_t dim, const T* const* codes, double* scores) {
  double sum[count] = {};
  for (int64_t d = 0; d < dim; ++d) {
    const double x = row[d];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const double c = codes[i][d];
      sum[i] += cosine ? -(x * c) : c * c * 0.5 - x * c;
    }
  }
  for (int i = 0; i < count; ++i) scores[i] = sum[i];
}

template <bool cosine, typename T>
void pair_scores_all(const T* row, int64_t dim, const T* const* codes, int64_t count,
                     double* scores) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) pair_scores_of<8, cosine>(row, dim, codes + i, scores + i);
  for (; i + 4 <= count; i += 4) pair_scores_of<4, cosine>(row, dim, codes + i, scores + i);
  for (; i < count; ++i) pair_scores_of<1, cosine>(row, dim, codes + i, scores + i);
}

template <typename T>
void pair_scores(const T* row, int64_t dim, const T* const* codes, int64_t count, bool cosine,
                 double* scores) {
  (cosine ? pair_scores_all<true, T> : pair_scores_all<false, T>)(row, dim, codes, count, scores);
}

template <bool cosine>
inline void score_panel(const double* rows, const double* panel, int64_t dim, int64_t stride,
                        double* scores) {
  Doubles sum[kWideRows][kWideVectors];
  for (auto& row : sum) {
    for (auto& vector : row) vector = Doubles{};
  }
  for (int64_t d = 0; d < dim; ++d) {
#pragma GCC unroll 4
    for (int c = 0; c < kWideVectors; ++c) {
      const Doubles code = load<Doubles>(panel + d * kWidePanel + c * kHalfLanes);
      const Doubles half_square = code * code * 0.5;
#pragma GCC unroll 4
      for (int r = 0; r < kWideRows; ++r) {
        const Doubles product = rows[r * dim + d] * code;
        sum[r][c] += cosine ? -product : half_square - product;
      }
    }
  }
  for (int r = 0; r < kWideRows; ++r) {
    for (int c = 0; c < kWideVectors; ++c) store(scores + r * stride + c * kHalfLanes, sum[r][c]);
  }
}

void score_tile(const double* rows, const double* panels, int64_t panel_count, int64_t dim,
                bool cosine, double* scores) {
  for (int64_t panel = 0; panel < panel_count; ++panel) {
    (cosine ? score_panel<true> : score_panel<false>)(rows, panels + panel * kWidePanel * dim, dim,
                                                      panel_count * kWidePanel,
                                                      scores + panel * kWidePanel);
  }
}

}  // namespace

NearestCodeExact TORCHVQ_LEVEL_NAME(nearest_code_exact)() {
  NearestCodeExact table;
  table.panel = kWidePanel;
  table.tile_rows = kWideRows;
  table.unit_rows = unit_rows<float>;
  table.unit_row = unit_row<double>;
  table.pair_scores = pair_scores<float>;
  table.wide = {unit_rows<double>, pair_scores<double>};
  table.score_tile = score_tile;
  return table;
}

}  // namespace torchvq::kernels
