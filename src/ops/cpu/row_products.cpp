// CPU: tiles of rows and columns, each on one thread.
#include "ops/row_products.h"

#include <algorithm>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/row_products.h"

namespace torchvq {
namespace {

// Multiply-adds for which a thread is worth its start.
constexpr int64_t kProductGrain = 1 << 18;

at::Tensor row_products(const at::Tensor& x_, const at::Tensor& matrix_,
                        const at::Tensor& offset_) {
  detail::check_row_products(x_, matrix_, offset_);
  const auto x = x_.contiguous(), matrix = matrix_.contiguous(), offset = offset_.contiguous();
  const int64_t rows = x.size(0), features = x.size(1), columns = matrix.size(1);
  auto result = at::empty({rows, columns}, x.options());
  if (result.numel() == 0) return result;
  const int64_t panels = (columns + kernels::kProductColumns - 1) / kernels::kProductColumns;
  const int64_t blocks = (rows + kernels::kProductRows - 1) / kernels::kProductRows;
  const int64_t work = std::min(rows, kernels::kProductRows) * std::max<int64_t>(features, 1) *
                       std::min(columns, kernels::kProductColumns);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_products", [&] {
    const auto kernel = kernels::row_products_kernel<scalar_t>(kernels::cpu_level());
    const auto* const from = x.const_data_ptr<scalar_t>();
    auto* const to = result.mutable_data_ptr<scalar_t>();
    const kernels::ProductMatrix<scalar_t> factor{
        matrix.const_data_ptr<scalar_t>(), offset.const_data_ptr<scalar_t>(), features, columns};
    const int64_t grain = std::max<int64_t>(1, kProductGrain / work);
    at::parallel_for(0, panels * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task % blocks * kernels::kProductRows;
        const int64_t column = task / blocks * kernels::kProductColumns;
        kernel(factor, column, std::min(columns, column + kernels::kProductColumns),
               from + row * features, std::min(kernels::kProductRows, rows - row),
               to + row * columns);
      }
    });
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("row_products", row_products); }

}  // namespace torchvq
