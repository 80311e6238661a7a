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

at::Tensor rounded_root(const at::Tensor& a) {
  const auto usual = a.gt(0).logical_and(a.isfinite());
  auto [m, exponent] = at::frexp(at::where(usual, a, 1.0));
  const auto odd = exponent.bitwise_and(1);
  // Scales m to [1, 4), so that the root is in [1, 2], where all numbers are
  // multiples of the same unit.
  m = m * at::where(odd.eq(1), 2.0, 4.0).to(m.scalar_type());
  exponent = (exponent - at::where(odd.eq(1), 1, 2).to(exponent.scalar_type())).div(2, "trunc");
  const auto root = m.sqrt();
  // root^2 = square + rest without error (Dekker 1971), by splitting the digits into halves.
  const auto wide = root * 134217729.0;
  const auto high = wide - (wide - root), low = root - high;
  const auto square = root * root;
  const auto rest = (high * high - square) + (high + high) * low + low * low;
  // The root is correctly rounded if m lies between the squares of the midpoints to its
  // neighbours. These are root^2 -+ root * unit plus a quarter of unit^2, and m and root^2
  // are multiples of unit^2.
  constexpr double kUnit = 0x1p-52;
  const auto left = (m - square) - rest, reach = root * kUnit;
  const auto up = left.gt(reach).to(root.scalar_type()),
             down = left.le(-reach).to(root.scalar_type());
  return at::where(usual, (root + (up - down) * kUnit) * power_of_two(exponent), a);
}

at::Tensor norm_in_order(const at::Tensor& rows) {
  const auto squares = sum_in_order(rows * rows);
  return at::where(squares.gt(0), square_root(squares), squares);
}

}  // namespace torchvq::detail
