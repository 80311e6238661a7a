// What a training step does with each token and its code beside the search: the products of the rotation trick, gradients
// to the token, squared differences, levels of a stack. float64 inside, in the order of lanes.h, so that every instruction set gives the
// same bits.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Products of one row of token x, code c and gradient g.
struct RowProducts {
  double xx, cc, xc, gx, gc;
};

/// The gradient to a token: (T)(grad * g + token * x + code * c), without terms whose factor is 0 if both of token and
/// code are, because x may then be infinite; plus *commitment * (x - c) in T, unless that is null.
template <typename T>
struct RowGradient {
  double grad, token, code;
  const T* commitment;
};

/// Rows of tokens that pass a level of a residual stack.
template <typename T>
struct CommittedRows {
  const T* residuals;     ///< (rows, dim), the input of the level
  const T* const* codes;  ///< (rows), the code of each row
  const bool* mask;       ///< (rows,), or null
  T* sums;                ///< (rows, dim), to which codes are added
  T* left;                ///< (rows, dim), out: residual - code
};

template <typename T>
struct TokenRowsOf {
  RowProducts (*products)(const T* grad, const T* x, const T* code, int64_t dim);
  void (*gradient)(const RowGradient<T>& factors, const T* grad, const T* x, const T* code,
                   int64_t dim, T* to);
  /// The sum of (x - c)^2 over rows [begin, end); `mask` may be null, and masked rows are not read.
  double (*squared_differences)(const T* x, const T* codes, const bool* mask, int64_t begin,
                                int64_t end, int64_t dim);
  /// The same of residuals and their codes, in the same order. A residual that is not finite has NaN as its code.
  double (*commit)(const CommittedRows<T>& rows, int64_t count, int64_t dim);
};

struct TokenRowsKernel {
  TokenRowsOf<float> narrow;
  TokenRowsOf<double> wide;
};

TokenRowsKernel token_rows_default();
TokenRowsKernel token_rows_avx2();
TokenRowsKernel token_rows_avx512();

template <typename T>
TokenRowsOf<T> token_rows_kernel(CpuLevel level) {
  const TokenRowsKernel kernel = TORCHVQ_AT_LEVEL(level, token_rows)();
  if constexpr (sizeof(T) == sizeof(double)) {
    return kernel.wide;
  } else {
    return kernel.narrow;
  }
}

}  // namespace torchvq::kernels
