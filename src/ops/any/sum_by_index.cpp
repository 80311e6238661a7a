#include "ops/any/sum_by_index.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <torchvq/ops/code_statistics.h>

#include "detail/exponents.h"
#include "detail/fixed_point.h"
#include "detail/precision.h"
#include "kernels/exponents.h"

namespace torchvq::detail {

at::Tensor sum_by_index(const at::Tensor& rows_, const at::Tensor& indices, int64_t size) {
  if (sum_dtype(rows_) == at::kFloat) {
    // Fixed point needs float64, which this device lacks, so the order of additions is unspecified.
    return rows_.new_zeros({size, rows_.size(1)}, rows_.options().dtype(at::kFloat))
        .index_add_(0, indices, rows_.to(at::kFloat));
  }
  const auto rows = rows_.to(at::kDouble);
  const auto infinite = can_be_summed(rows).logical_not_();  // or NaN, or too large
  const auto least =
      indices.new_full({1, size}, kernels::kMinExponent, indices.options().dtype(at::kInt));
  const auto [counts, sums, exponents] =
      ops::code_statistics(rows.masked_fill(infinite, 0).unsqueeze(0), indices.unsqueeze(0), least);
  const auto lost =
      indices.new_zeros({size, rows.size(1)})
          .scatter_add_(0, indices.unsqueeze(-1).expand(rows.sizes()), infinite.to(at::kLong));
  return decode_to_double(sums, exponents, at::kDouble)[0].masked_fill_(
      lost.gt(0), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace torchvq::detail
