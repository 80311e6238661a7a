// The mean of commitment losses: sums over blocks of tokens, added in order.
#pragma once

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "kernels/cpu/commitment_loss.h"
#include "kernels/cpu/token_rows.h"

namespace torchvq::detail {

template <typename T>
double total_squared_difference(const at::Tensor& x, const at::Tensor& codes, const bool* mask) {
  const int64_t rows = x.size(0) * x.size(1), dim = x.size(2);
  const int64_t block = kernels::rows_of_squared_differences(dim);
  const int64_t blocks = (rows + block - 1) / block;
  const auto* a = x.const_data_ptr<T>();
  const auto* b = codes.const_data_ptr<T>();
  const auto kernel = kernels::token_rows_kernel<T>(kernels::cpu_level());
  std::vector<double> partial(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      partial[static_cast<size_t>(i)] =
          kernel.squared_differences(a, b, mask, i * block, std::min(rows, (i + 1) * block), dim);
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return total;
}

/// Number of unmasked rows; `mask` may be null.
inline int64_t count_tokens(const bool* mask, int64_t rows) {
  return mask == nullptr ? rows : std::count(mask, mask + rows, true);
}

/// For contiguous tensors (H, N, D) of the same dtype, float32 or float64;
/// 0 if all rows are masked.
inline double mean_squared_difference(const at::Tensor& x, const at::Tensor& codes,
                                      const bool* mask) {
  const auto count = count_tokens(mask, x.size(0) * x.size(1)) * x.size(2);
  const double total = x.scalar_type() == at::kDouble
                           ? total_squared_difference<double>(x, codes, mask)
                           : total_squared_difference<float>(x, codes, mask);
  return count == 0 ? 0.0 : total / static_cast<double>(count);
}

}  // namespace torchvq::detail
