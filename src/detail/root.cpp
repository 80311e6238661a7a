#include "detail/root.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/where.h>

#include "detail/exponents.h"
#include "detail/ordered_sum.h"

namespace torchvq::detail {

at::Tensor square_root(const at::Tensor& a) {
  auto [mantissa, exponent] = at::frexp(at::where(a.isfinite(), a, 1.0));
  const auto odd = exponent.bitwise_and(1);
  mantissa = at::where(odd.eq(1), mantissa * 0.5, mantissa);
  exponent = (exponent + odd).bitwise_right_shift(1);
  auto root = mantissa * 0.65 + 0.35;
  for (int step = 0; step < 4; ++step) root = (root + mantissa / root) * 0.5;
  return at::where(a.isfinite(), root * power_of_two(exponent), a);
}

at::Tensor norm_in_order(const at::Tensor& rows) {
  const auto squares = sum_in_order(rows * rows);
  return at::where(squares.gt(0), square_root(squares), squares);
}

}  // namespace torchvq::detail
