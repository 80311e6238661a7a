#include "detail/codebook_average.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "detail/exponents.h"
#include "detail/precision.h"
#include "detail/root.h"
#include "kernels/cpu/codebook_average.h"

namespace torchvq::detail {
namespace {

template <typename T>
void fill_unit_rows(const T* from, int64_t rows, int64_t dim, double* to) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double norm = kernels::norm_in_order(from + row * dim, dim);
      const double divisor = norm > 0 ? norm : 1.0;
      for (int64_t i = row * dim; i < (row + 1) * dim; ++i)
        to[i] = static_cast<double>(from[i]) / divisor;
    }
  });
}

at::Tensor unit_rows_on_cpu(const at::Tensor& rows_) {
  const auto rows = rows_.contiguous();
  auto unit = at::empty(rows.sizes(), rows.options().dtype(at::kDouble));
  const int64_t dim = rows.size(-1), count = rows.numel() / dim;
  if (rows.scalar_type() == at::kDouble) {
    fill_unit_rows(rows.const_data_ptr<double>(), count, dim, unit.mutable_data_ptr<double>());
  } else {
    fill_unit_rows(rows.const_data_ptr<float>(), count, dim, unit.mutable_data_ptr<double>());
  }
  return unit;
}

}  // namespace

at::Tensor order_free_totals(const at::Tensor& values) {
  const auto finite = values.isfinite().all(-1, /*keepdim=*/true);
  const auto safe = values.masked_fill(finite.logical_not(), 0);
  const auto largest = exponent_of(safe.abs().amax(-1, /*keepdim=*/true));
  const auto shift = largest.neg().add(kernels::total_bits(values.size(-1)));
  const auto total = (safe * power_of_two(shift)).round().to(at::kLong).sum(-1, /*keepdim=*/true);
  return (total.to(at::kDouble) * power_of_two(shift.neg()))
      .masked_fill(finite.logical_not(), std::numeric_limits<double>::quiet_NaN());
}

at::Tensor smoothed_sizes(const at::Tensor& cluster_size, double eps) {
  const auto sizes = cluster_size.to(at::kDouble);
  const auto total = order_free_totals(sizes);
  return (sizes + eps) / (total + static_cast<double>(sizes.size(-1)) * eps) * total;
}

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows.is_cpu() ? unit_rows_on_cpu(rows) : unit_rows_by_operators(rows);
}

at::Tensor unit_rows_by_operators(const at::Tensor& rows) {
  const auto values = rows.to(at::kDouble);
  const auto norm = norm_in_order(values).unsqueeze(-1);
  return at::where(norm.gt(0), values / norm, values);
}

at::Tensor codes_from_averages(const at::Tensor& embed, const at::Tensor& embed_avg,
                               const at::Tensor& sizes, const at::Tensor& keep, bool unit) {
  const auto stays = keep.logical_or(sizes.gt(0).logical_not()).unsqueeze(-1);
  auto codes = narrowed(embed_avg.to(at::kDouble).div(sizes.unsqueeze(-1)), embed.scalar_type());
  if (unit) codes = unit_rows(codes).to(embed.scalar_type());
  return at::where(stays, embed, codes);
}

}  // namespace torchvq::detail
