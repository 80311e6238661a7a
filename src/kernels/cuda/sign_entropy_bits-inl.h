// Arithmetic of sign_entropy for one number, with the steps of kernels/cpu/sign_entropy-inl.h.
// Compiled without contraction.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sign_entropy.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

inline constexpr float kMostLogit = 87.0F;
inline constexpr float kSmallestNormal = 1.17549435e-38F;

/// exp(-v) for v in [0, 87].
__device__ inline float exp_of_minus_wide(float v) {
  const float shifted = v * -1.44269504F + 12582912.0F;  // rounds to an integer, in the low bits
  const float whole = shifted - 12582912.0F;
  const float rest = (-v - whole * 0.693145752F) - whole * 1.42860677e-6F;
  float power = 1.0F / 5040.0F;
  power = power * rest + 1.0F / 720.0F;
  power = power * rest + 1.0F / 120.0F;
  power = power * rest + 1.0F / 24.0F;
  power = power * rest + 1.0F / 6.0F;
  power = power * rest + 0.5F;
  power = power * rest + 1.0F;
  power = power * rest + 1.0F;
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
}

/// 2 atanh(s) for |s| <= 1/3.
__device__ inline float twice_atanh(float s) {
  const float square = s * s;
  float series = 2.0F / 15.0F;
  series = series * square + 2.0F / 13.0F;
  series = series * square + 2.0F / 11.0F;
  series = series * square + 2.0F / 9.0F;
  series = series * square + 2.0F / 7.0F;
  series = series * square + 2.0F / 5.0F;
  series = series * square + 2.0F / 3.0F;
  return s * 2.0F + s * square * series;
}

/// log(v) of normal numbers.
__device__ inline float logarithm(float v) {
  const auto bits = static_cast<int32_t>(__float_as_uint(v));
  // Exponent such that the rest is in [sqrt(1/2), sqrt(2)).
  const int32_t exponent = (bits - 0x3F3504F3) >> 23;
  const float rest =
      __uint_as_float(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23));
  const auto whole = static_cast<float>(exponent);
  const float log_rest = twice_atanh((rest - 1.0F) / (rest + 1.0F));
  return whole * 0.693145752F + (whole * 1.42860677e-6F + log_rest);
}

struct OneBit {
  float on, off, entropy, slope;
};

__device__ inline OneBit one_bit(float z) {
  const float size = fabsf(z);
  const float t = size < kMostLogit ? size : kMostLogit;
  const float e = exp_of_minus_wide(t);
  const float likely = 1.0F / (1.0F + e);
  const float unlikely = e * likely;
  const float slope = t * (likely * unlikely);
  OneBit bit;
  bit.on = z > 0.0F ? likely : unlikely;
  bit.off = z > 0.0F ? unlikely : likely;
  bit.entropy = twice_atanh(e / (2.0F + e)) + t * unlikely;
  bit.slope = z > 0.0F ? -slope : slope;
  return z == z ? bit : OneBit{z, z, z, z};  // NaN stays NaN
}

/// The probability of `code` of `count` bits with probabilities `on` and `off`: multiplied from the
/// last bit to the first, as in the pyramids.
__device__ inline float code_probability(const float* on, const float* off, int count, int code) {
  float value = 1;
  for (int k = 0; k < count; ++k) {
    const int bit = count - 1 - k;
    value = value * ((code >> k) & 1 ? on[bit] : off[bit]);
  }
  return value;
}

/// Number of real tokens of a head.
__device__ inline int64_t real_tokens(const EntropyTokens& tokens) {
  if (tokens.mask == nullptr || tokens.tokens == 0) return tokens.tokens;
  return tokens.place[tokens.tokens - 1];
}

/// Factor of the gradients of a head; 0 without tokens.
__device__ inline float gradient_weight(const float* tail, float sharpness, int64_t heads) {
  const auto count = static_cast<double>(tail[1]);
  return count == 0
             ? 0.0F
             : static_cast<float>(static_cast<double>(tail[2]) * static_cast<double>(sharpness) /
                                  (count * static_cast<double>(heads)));
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
