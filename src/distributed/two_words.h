// Fixed-point sums of two words; the second is in units of 2^-32 of the first.
#pragma once

#include <cstdint>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

namespace torchvq::distributed {

// The second word adds this many bits of precision.
constexpr int32_t kLowBits = 32;
constexpr int64_t kLowWord = (int64_t{1} << kLowBits) - 1;

struct Words {
  at::Tensor whole;
  at::Tensor rest;  ///< in [0, 2^32)
};

inline Words words_of(const at::Tensor& sums) {
  return {sums[0].add(sums[1].bitwise_right_shift(kLowBits)), sums[1].bitwise_and(kLowWord)};
}

/// Sums divided by 2^shift, with shift (H, K) at least 0; bits below the last are dropped.
inline at::Tensor shifted_words(const at::Tensor& sums, const at::Tensor& shift_of_codes) {
  const auto shift = shift_of_codes.to(at::kLong).clamp_min(0).unsqueeze(-1);
  const auto near = shift.clamp_max(kLowBits - 1);
  const auto far = shift.sub(kLowBits).clamp(0, 63);
  const auto [whole, rest] = words_of(sums);
  const auto lost = whole.sub(whole.bitwise_right_shift(near).bitwise_left_shift(near));
  const auto low = lost.bitwise_left_shift(kLowBits).add(rest).bitwise_right_shift(near);
  const auto lower = whole.bitwise_right_shift(far).bitwise_and(kLowWord);
  return at::stack(
      {whole.bitwise_right_shift(shift.clamp_max(63)), at::where(shift.lt(kLowBits), low, lower)});
}

/// Rescales sums to larger exponents.
inline at::Tensor rescaled(const at::Tensor& sums, const at::Tensor& from, const at::Tensor& to) {
  // On other devices, the comparison would wait for the device.
  if (sums.is_cpu() && from.equal(to)) return sums;
  return shifted_words(sums, to.sub(from));
}

inline at::Tensor split_word(const at::Tensor& word) {
  return at::stack({word.bitwise_right_shift(kLowBits), word.bitwise_and(kLowWord)});
}

}  // namespace torchvq::distributed
