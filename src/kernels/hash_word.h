// The word of 64 bits that stands for an element in the hash of a row, on CPU and GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/random.h"

namespace torchvq::kernels {

/// Sign-extended, as in the tensor version, which widens int32.
constexpr uint64_t hash_word(float value) {
  return static_cast<uint64_t>(static_cast<int64_t>(std::bit_cast<int32_t>(value)));
}
/// Mixed: a multiple of 2^n keeps only 64 - n bits of its multiplier, so that two changed signs
/// would cancel.
constexpr uint64_t hash_word(double value) { return mix_bits(std::bit_cast<uint64_t>(value)); }

}  // namespace torchvq::kernels
