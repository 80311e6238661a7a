#include "ops/code_exponents.h"

#include <bit>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/row_magnitude.h"
#include "kernels/exponents.h"

namespace torchvq {
namespace {

constexpr int64_t kElementsPerTask = 1 << 16;

int64_t floor_divide(int64_t a, int64_t b) {
  return a / b - static_cast<int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

kernels::RowMagnitude magnitude_of(const kernels::CodeRowsKernel& /*rows*/, const double* row,
                                   int64_t dim) {
  return kernels::row_magnitude(row, dim);
}

kernels::RowMagnitude magnitude_of(const kernels::CodeRowsKernel& rows, const float* row,
                                   int64_t dim) {
  const auto largest = std::bit_cast<float>(rows.largest_bits(row, dim));
  return {largest, std::isfinite(largest)};
}

/// One head: first stores each code's own exponent, INT32_MIN for codes that have none.
template <typename T>
void fill_head(const T* codebook, int64_t size, int64_t dim, int32_t* exponents) {
  constexpr auto kNone = std::numeric_limits<int32_t>::min();
  const auto rows = kernels::code_rows_kernel(kernels::cpu_level());
  at::parallel_for(0, size, 1 + kElementsPerTask / dim, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const auto magnitude = magnitude_of(rows, codebook + k * dim, dim);
      const bool counts = magnitude.finite && magnitude.value > 0;
      exponents[k] = counts ? kernels::exponent_of(magnitude.value) : kNone;
    }
  });
  int64_t sum = 0, counted = 0;
  for (int64_t k = 0; k < size; ++k) {
    const bool counts = exponents[k] != kNone;
    sum += counts ? exponents[k] : 0;
    counted += counts;
  }
  const auto mean = static_cast<int32_t>(floor_divide(sum, std::max<int64_t>(counted, 1)));
  for (int64_t k = 0; k < size; ++k) exponents[k] = std::max(exponents[k], mean);
}

at::Tensor code_exponents(const at::Tensor& codebook_) {
  detail::check_code_exponents(codebook_);
  const bool wide = codebook_.scalar_type() == at::kDouble;
  const auto codebook = codebook_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const int64_t heads = codebook.size(0), size = codebook.size(1), dim = codebook.size(2);
  auto exponents = at::empty({heads, size}, codebook.options().dtype(at::kInt));
  auto* to = exponents.mutable_data_ptr<int32_t>();
  for (int64_t h = 0; h < heads; ++h) {
    if (wide) {
      fill_head(codebook.const_data_ptr<double>() + h * size * dim, size, dim, to + h * size);
    } else {
      fill_head(codebook.const_data_ptr<float>() + h * size * dim, size, dim, to + h * size);
    }
  }
  return exponents;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("code_exponents", code_exponents); }

}  // namespace torchvq
