#include "detail/ordered_sum.h"

#include <ATen/TensorOperators.h>

namespace torchvq::detail {

at::Tensor sum_in_order(const at::Tensor& terms) {
  if (terms.size(-1) == 0) return terms.new_zeros(terms.sizes().slice(0, terms.dim() - 1));
  // The transposed copy is read row by row; columns of `terms` would be strided.
  const auto columns = terms.movedim(-1, 0).contiguous();
  auto sum = columns[0] + 0.0;  // adding 0 rules out -0, as in a sum that starts at 0
  for (int64_t d = 1; d < columns.size(0); ++d) sum.add_(columns[d]);
  return sum;
}

}  // namespace torchvq::detail
