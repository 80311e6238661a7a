// Argument checks of sign_quantize and sign_decode, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The largest number of bits of a code; indices stay below 2^62.
inline constexpr int64_t kMostSignBits = 62;

void check_sign_quantize(const at::Tensor& x, double scale);
void check_sign_decode(const at::Tensor& indices, int64_t bits, double scale, at::ScalarType dtype);

}  // namespace torchvq::detail
