// Weighted sums of rows: one axis of the linear maps between a feature map and the tokens of a
// scale. float64 inside.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// An input row of an output row.
struct WeightedRow {
  int64_t row;
  double weight;
  double share;  ///< the row is divided by it first
};

struct OutputRow {
  int64_t row;
  int64_t end;     ///< of its inputs, which begin where those of the output before end
  double divisor;  ///< of the sum
};

/// Where the rows of one repetition of the axis begin.
struct RowBases {
  int64_t input, output;
};

/// The sparse matrix of an axis, and the repetitions of the axis.
struct AxisRows {
  const WeightedRow* inputs;
  const OutputRow* outputs;
  const RowBases* bases;
  int64_t output_count, base_count;
};

/// `width` columns of rows that are `from_step` and `to_step` elements apart.
template <typename In, typename Out>
using ResampleRows = void (*)(const AxisRows& axis, const In* from, int64_t from_step, Out* to,
                              int64_t to_step, int64_t width);

struct ResampleRowsKernel {
  ResampleRows<float, float> narrow;
  ResampleRows<float, double> widening;
  ResampleRows<double, float> narrowing;
  ResampleRows<double, double> wide;
};

ResampleRowsKernel resample_rows_default();
ResampleRowsKernel resample_rows_avx2();
ResampleRowsKernel resample_rows_avx512();

inline ResampleRowsKernel resample_rows_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, resample_rows)();
}

}  // namespace torchvq::kernels
