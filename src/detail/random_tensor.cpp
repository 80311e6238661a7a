#include "detail/random_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include "detail/checks.h"
#include "detail/root.h"
#include "kernels/random.h"

namespace torchvq::detail {
namespace {

at::Tensor shift_right(const at::Tensor& values, int64_t places) {
  const auto mask = static_cast<int64_t>(~uint64_t{0} >> places);
  return values.bitwise_right_shift(places).bitwise_and(mask);
}

at::Tensor cosine_of_turn(const at::Tensor& u) {
  const auto y = ((u - 0.5).abs().neg() + 0.25) * 6.2831853071795865;
  const auto z = y * y;
  auto series = at::full_like(z, kernels::kSineSeries[0]);
  for (int k = 1; k < 11; ++k) series = (series * z).add_(kernels::kSineSeries[k]);
  return (y * series).neg();
}

}  // namespace

at::Tensor mix_bits(const at::Tensor& values) {
  auto z = values.bitwise_xor(shift_right(values, 30)) * static_cast<int64_t>(kernels::kMixFirst);
  z = z.bitwise_xor(shift_right(z, 27)) * static_cast<int64_t>(kernels::kMixSecond);
  return z.bitwise_xor(shift_right(z, 31));
}

at::Tensor random_key(const at::Tensor& rng, int64_t purpose, int64_t stream) {
  const auto seed = rng.narrow(0, 0, 1), step = rng.narrow(0, 1, 1);
  const auto tag = static_cast<int64_t>(kernels::mix_bits(static_cast<uint64_t>(purpose)));
  const auto branch = static_cast<int64_t>(kernels::mix_bits(static_cast<uint64_t>(stream)));
  return mix_bits(seed.bitwise_xor(mix_bits(step.bitwise_xor(tag)))).bitwise_xor(branch);
}

at::Tensor random_bits(const at::Tensor& key, const at::Tensor& positions) {
  return mix_bits(positions * static_cast<int64_t>(kernels::kGoldenGamma) + key);
}

at::Tensor uniform_from_bits(const at::Tensor& bits, int64_t precision) {
  const auto odd = shift_right(bits, 64 - precision).bitwise_or(1);
  return odd.to(at::kDouble) * std::ldexp(1.0, -static_cast<int>(precision));
}

at::Tensor log_of_uniform(const at::Tensor& u) {
  auto [mantissa, exponent] = at::frexp(u);
  const auto small = mantissa.lt(0.70710678118654752);
  mantissa = at::where(small, mantissa * 2.0, mantissa);
  exponent = exponent - small.to(exponent.scalar_type());
  const auto s = (mantissa - 1.0) / (mantissa + 1.0);
  const auto z = s * s;
  auto series = at::full_like(z, 1.0 / 21.0);
  for (int k = 19; k >= 1; k -= 2) series = (series * z).add_(1.0 / k);
  return exponent.to(at::kDouble) * 0.69314718055994531 + (s * 2.0) * series;
}

at::Tensor normal_from_bits(const at::Tensor& radius_bits, const at::Tensor& angle_bits) {
  const auto radius = square_root(log_of_uniform(uniform_from_bits(radius_bits, 53)) * -2.0);
  return radius * cosine_of_turn(uniform_from_bits(angle_bits, 53));
}

void check_rng(const char* op, const at::Tensor& rng) {
  check_dtype(op, "rng", rng, at::kLong);
  TORCH_CHECK_VALUE(rng.dim() == 1 && rng.sym_size(0) == 2, op,
                    ": expected rng to have shape (2,), (seed, step), but got shape ",
                    rng.sym_sizes());
}

}  // namespace torchvq::detail
