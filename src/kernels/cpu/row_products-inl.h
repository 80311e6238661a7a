// Source of the kernels of row_products.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Tiles of sums stay in registers. Every element is summed by vectors, in the same
// order: a scalar loop might not be fused.
#include "kernels/cpu/row_products.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kTileRows = 6;
constexpr int kTileVectors = kRegisters == 32 ? 4 : 2;
// Features of the last columns that are copied together.
constexpr int64_t kCopiedFeatures = 64;

template <typename T>
constexpr int kTileWidth = kLanes * static_cast<int>(sizeof(float)) / static_cast<int>(sizeof(T));

/// Some features of some columns, a multiple of the vector's width, and where sums begin.
template <typename T>
struct ProductBlock {
  const T* values;  ///< rows `step` apart
  int64_t step;
  int64_t features;
};

template <typename T, int rows, int vectors>
inline void product_tile(const ProductBlock<T>& block, const T* from, int64_t from_step,
                         const T* begin, int64_t begin_step, T* to, int64_t to_step) {
  using Numbers = Vector<T, kTileWidth<T>>;
  Numbers sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = load<Numbers>(begin + r * begin_step + v * kTileWidth<T>);
    }
  }
  const T* values = block.values;
  for (int64_t i = 0; i < block.features; ++i, values += block.step) {
    Numbers value[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) value[v] = load<Numbers>(values + v * kTileWidth<T>);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const T factor = from[r * from_step + i];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] += factor * value[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(to + r * to_step + v * kTileWidth<T>, sum[r][v]);
  }
}

/// Whole vectors of `width` columns of `rows` rows. Sums begin at the offset, of which all rows have the
/// same (step 0), or at what the features before have given.
template <typename T, int rows>
void product_rows(const ProductBlock<T>& block, int64_t width, const T* from, int64_t from_step,
                  const T* begin, int64_t begin_step, T* to, int64_t to_step) {
  constexpr int64_t one = kTileWidth<T>, several = kTileVectors * one;
  int64_t column = 0;
  const auto at = [&] {
    return ProductBlock<T>{block.values + column, block.step, block.features};
  };
  for (; column + several <= width; column += several) {
    product_tile<T, rows, kTileVectors>(at(), from, from_step, begin + column, begin_step,
                                        to + column, to_step);
  }
  for (; column < width; column += one) {
    product_tile<T, rows, 1>(at(), from, from_step, begin + column, begin_step, to + column,
                             to_step);
  }
}

/// The same for any number of rows.
template <typename T>
void product_block(const ProductBlock<T>& block, int64_t width, const T* from, int64_t from_step,
                   int64_t count, const T* begin, int64_t begin_step, T* to, int64_t to_step) {
  int64_t r = 0;
  const auto take = [&](auto product, int64_t step) {
    for (; r + step <= count; r += step) {
      product(block, width, from + r * from_step, from_step, begin + r * begin_step, begin_step,
              to + r * to_step, to_step);
    }
  };
  take(product_rows<T, kTileRows>, kTileRows);
  take(product_rows<T, 3>, 3);
  take(product_rows<T, 1>, 1);
}

/// Columns [first, first + width) as they lie; whole vectors.
template <typename T>
void multiply_in_place(const ProductMatrix<T>& matrix, int64_t first, int64_t width, const T* rows,
                       int64_t count, T* to) {
  const ProductBlock<T> block{matrix.values + first, matrix.columns, matrix.features};
  product_block(block, width, rows, matrix.features, count, matrix.offset + first, 0, to + first,
                matrix.columns);
}

/// The same for less than a vector of columns, from a copy that zeros fill to a whole vector, some
/// features after the other. Sums lie in a buffer of whole vectors.
template <typename T>
void multiply_copied(const ProductMatrix<T>& matrix, int64_t first, int64_t width, const T* rows,
                     int64_t count, T* to) {
  constexpr int64_t whole = kTileWidth<T>;
  alignas(64) T copied[kCopiedFeatures * whole] = {};
  alignas(64) T sums[kProductRows * whole];
  alignas(64) T offset[whole] = {};
  const auto bytes = static_cast<size_t>(width) * sizeof(T);
  memcpy(offset, matrix.offset + first, bytes);
  const T* begin = offset;
  int64_t begin_step = 0, done = 0;
  do {
    const int64_t left = matrix.features - done;
    const int64_t features = left < kCopiedFeatures ? left : kCopiedFeatures;
    for (int64_t i = 0; i < features; ++i) {
      memcpy(copied + i * whole, matrix.values + (done + i) * matrix.columns + first, bytes);
    }
    product_block({copied, whole, features}, whole, rows + done, matrix.features, count, begin,
                  begin_step, sums, whole);
    begin = sums;
    begin_step = whole;
    done += features;
  } while (done < matrix.features);
  for (int64_t r = 0; r < count; ++r) {
    memcpy(to + r * matrix.columns + first, sums + r * whole, bytes);
  }
}

template <typename T>
void row_products(const ProductMatrix<T>& matrix, int64_t first, int64_t last, const T* rows,
                  int64_t count, T* to) {
  const int64_t width = last - first, whole = width / kTileWidth<T> * kTileWidth<T>;
  if (whole > 0) multiply_in_place(matrix, first, whole, rows, count, to);
  if (whole < width) multiply_copied(matrix, first + whole, width - whole, rows, count, to);
}

}  // namespace

ProductRowsKernel TORCHVQ_LEVEL_NAME(row_products)() {
  return {row_products<float>, row_products<double>};
}

}  // namespace torchvq::kernels
