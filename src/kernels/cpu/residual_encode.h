// Greedy encoding of a range of rows by residual levels: a block of rows passes through all levels
// while it is in cache. Serial; the searches are const and shared by threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"

namespace torchvq::kernels {

// Twice what a search of packed codes processes at a time; residuals and sums then
// fit the second-level cache.
constexpr int64_t kResidualBlockValues = 24576;

template <typename T, typename Search>
struct ResidualEncodeLevel {
  const T* codes = nullptr;  ///< (size, dim)
  const Search* search = nullptr;
};

/// Results: `quantized` (rows, dim), and `indices` (rows, stride), in which the
/// levels in use come first.
template <typename T>
struct ResidualEncodeOutput {
  T* quantized = nullptr;
  int64_t* indices = nullptr;
  int64_t stride = 0;
};

/// Search has `search(const T* rows, int64_t count, int64_t* indices) const`, which writes -1 for a
/// row that is not finite.
template <typename T, typename Search>
class ResidualEncode {
 public:
  using Level = ResidualEncodeLevel<T, Search>;

  /// block: number of rows that pass through the levels together.
  ResidualEncode(const std::vector<Level>& levels, int64_t dim, int64_t block)
      : levels_(levels),
        dim_(dim),
        block_(block),
        residual_(block_ * dim),
        found_(static_cast<size_t>(block_)),
        places_(static_cast<size_t>(block_)) {}

  /// Encodes rows [begin, end) of x (rows, dim). mask: one value per row, or null; a masked row
  /// (false) gets zeros and -1.
  void encode(const T* x, const bool* mask, int64_t begin, int64_t end,
              const ResidualEncodeOutput<T>& to) {
    while (begin < end) begin = encode_block(x, mask, begin, end, to);
  }

 private:
  /// Gathers and encodes the next rows; returns the row at which it stopped.
  int64_t encode_block(const T* x, const bool* mask, int64_t row, int64_t end,
                       const ResidualEncodeOutput<T>& to) {
    int64_t count = 0;
    for (; row < end && count < block_; ++row) {
      std::fill_n(to.quantized + row * dim_, dim_, T(0));
      if (mask && !mask[row]) {
        std::fill_n(to.indices + row * to.stride, levels_.size(), -1);
        continue;
      }
      std::copy_n(x + row * dim_, dim_, residual_.data() + count * dim_);
      places_[static_cast<size_t>(count++)] = row;
    }
    for (size_t n = 0; n < levels_.size() && count > 0; ++n) {
      levels_[n].search->search(residual_.data(), count, found_.data());
      for (int64_t i = 0; i < count; ++i) take(n, i, to);
    }
    return row;
  }

  /// Subtracts the code of level n from the residual of row i and adds it to the row's sum.
  void take(size_t n, int64_t i, const ResidualEncodeOutput<T>& to) {
    const int64_t found = found_[static_cast<size_t>(i)], row = places_[static_cast<size_t>(i)];
    to.indices[row * to.stride + static_cast<int64_t>(n)] = std::max<int64_t>(found, 0);
    T* const left = residual_.data() + i * dim_;
    T* const sum = to.quantized + row * dim_;
    if (found < 0) {
      std::fill_n(left, dim_, std::numeric_limits<T>::quiet_NaN());
      std::fill_n(sum, dim_, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    const T* const code = levels_[n].codes + found * dim_;
    for (int64_t d = 0; d < dim_; ++d) sum[d] += code[d];
    for (int64_t d = 0; d < dim_; ++d) left[d] -= code[d];
  }

  const std::vector<Level>& levels_;
  int64_t dim_, block_;
  AlignedBuffer<T> residual_;    ///< (block, dim)
  std::vector<int64_t> found_;   ///< of the block's rows
  std::vector<int64_t> places_;  ///< of the block's rows in x
};

}  // namespace torchvq::kernels
