#include "detail/exponents.h"

#include "kernels/exponents.h"

namespace torchvq::detail {

at::Tensor power_of_two(const at::Tensor& exponents) {
  return exponents.to(at::kLong).add(1023).bitwise_left_shift(52).view(at::kDouble);
}

at::Tensor exponent_of(const at::Tensor& magnitudes) {
  const auto bits = magnitudes.to(at::kDouble).contiguous().view(at::kLong);
  const auto above = bits.bitwise_and((int64_t{1} << 52) - 1).ne(0);
  return clamp_exponents(
      bits.bitwise_right_shift(52).sub(1023).add(above.to(at::kLong)).to(at::kInt));
}

at::Tensor can_be_summed(const at::Tensor& x) { return x.abs().le(kernels::kLargestSummed); }

at::Tensor clamp_exponents(const at::Tensor& exponents) {
  return exponents.clamp(kernels::kMinExponent, kernels::kMaxExponent);
}

}  // namespace torchvq::detail
