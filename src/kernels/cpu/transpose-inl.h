// Source of the kernels of transpose.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Blocks of vectors are transposed in registers; a strip of columns is as wide
// as a few cache lines, so that each line of the input is read once while it is near.
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose.h"

namespace torchvq::kernels {
namespace {

/// The side of a block, which fills kLanes vectors with words, and twice as many with halves.
template <typename T>
constexpr int64_t kSide = sizeof(T) == 4 ? kLanes : 2 * kLanes;

inline void transpose_block(const float* from, int64_t columns, float* to, int64_t rows) {
  Floats block[kLanes];
  for (int i = 0; i < kLanes; ++i) block[i] = load<Floats>(from + i * columns);
  transpose(block);
  for (int i = 0; i < kLanes; ++i) store(to + i * rows, block[i]);
}

/// Two rows are joined to words: one vector holds the even columns of both, another the odd ones.
/// The words are transposed as those above.
inline void transpose_block(const uint16_t* from, int64_t columns, uint16_t* to, int64_t rows) {
  Floats even[kLanes], odd[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const auto first = load<Words>(from + 2 * i * columns);
    const auto second = load<Words>(from + (2 * i + 1) * columns);
    even[i] = reinterpret_cast<Floats>((first & 0xffffU) | (second << 16));
    odd[i] = reinterpret_cast<Floats>((first >> 16) | (second & 0xffff0000U));
  }
  transpose(even);
  transpose(odd);
  for (int64_t i = 0; i < kLanes; ++i) {
    store(to + 2 * i * rows, even[i]);
    store(to + (2 * i + 1) * rows, odd[i]);
  }
}

template <typename T>
void transpose_columns(const T* from, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                       T* to) {
  constexpr int64_t side = kSide<T>;
  const auto one_by_one = [&](int64_t first_row, int64_t column, int64_t last) {
    for (; column < last; ++column) {
      for (int64_t row = first_row; row < rows; ++row) {
        to[column * rows + row] = from[row * columns + column];
      }
    }
  };
  const int64_t whole_rows = rows / side * side;
  for (int64_t strip = begin; strip < end; strip += kTransposedStrip) {
    const int64_t last = strip + kTransposedStrip < end ? strip + kTransposedStrip : end;
    const int64_t whole = strip + (last - strip) / side * side;
    for (int64_t row = 0; row < whole_rows; row += side) {
      for (int64_t column = strip; column < whole; column += side) {
        transpose_block(from + row * columns + column, columns, to + column * rows + row, rows);
      }
    }
    one_by_one(whole_rows, strip, whole);
    one_by_one(0, whole, last);
  }
}

}  // namespace

TransposeKernel TORCHVQ_LEVEL_NAME(transpose)() {
  return {transpose_columns<float>, transpose_columns<uint16_t>};
}

}  // namespace torchvq::kernels
