// Products of rows with a matrix: each result is one sum in the order of the features, whatever the
// other rows are. Multiply and add are fused, where the processor can.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Columns of a task, a multiple of every tile, and its rows, at most.
inline constexpr int64_t kProductColumns = 64;
inline constexpr int64_t kProductRows = 96;

template <typename T>
struct ProductMatrix {
  const T* values;  ///< (features, columns)
  const T* offset;  ///< (columns,)
  int64_t features, columns;
};

/// Columns [first, last) of `to` (count, columns) = offset + rows (count, features) times the matrix,
/// for at most kProductRows rows and kProductColumns columns.
template <typename T>
using ProductRows = void (*)(const ProductMatrix<T>& matrix, int64_t first, int64_t last,
                             const T* rows, int64_t count, T* to);

struct ProductRowsKernel {
  ProductRows<float> narrow;
  ProductRows<double> wide;
};

ProductRowsKernel row_products_default();
ProductRowsKernel row_products_avx2();
ProductRowsKernel row_products_avx512();

template <typename T>
ProductRows<T> row_products_kernel(CpuLevel level) {
  const ProductRowsKernel kernel = TORCHVQ_AT_LEVEL(level, row_products)();
  if constexpr (sizeof(T) == sizeof(double)) {
    return kernel.wide;
  } else {
    return kernel.narrow;
  }
}

}  // namespace torchvq::kernels
