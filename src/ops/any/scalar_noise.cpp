// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/scalar_noise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/random_purpose.h>

#include "detail/device_table.h"
#include "detail/random_tensor.h"

namespace torchvq {
namespace {

at::Tensor half_steps_like(const at::Tensor& codes, at::IntArrayRef levels) {
  return codes.scalar_type() == at::kDouble
             ? detail::device_table(detail::half_steps<double>(levels), codes.options())
             : detail::device_table(detail::half_steps<float>(levels), codes.options());
}

at::Tensor scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction, int64_t stream) {
  detail::check_scalar_noise(codes, levels, rng, fraction);
  const auto key = detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kNoise), stream);
  const auto positions = at::arange(codes.numel(), rng.options()).view(codes.sizes());
  const auto bits = detail::random_bits(key, positions);
  const auto u = detail::uniform_from_bits(bits, detail::kNoisePrecision).to(codes.scalar_type());
  const auto noise = (u * 2 - 1) * half_steps_like(codes, levels);
  const auto moves = bits.bitwise_and(detail::kChoiceMask).lt(detail::noise_threshold(fraction));
  return (codes + at::where(moves, noise, 0)).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("scalar_noise", scalar_noise); }

}  // namespace torchvq
