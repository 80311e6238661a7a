// The multilinear hash behind row_keys. Torch-free; serial on a row.
#pragma once

#include <cstdint>

#include "kernels/hash_word.h"
#include "kernels/random.h"

namespace torchvq::kernels {

/// Sum over d of hash_word(row[d]) times multipliers[d], modulo 2^64; -0 counts as +0.
template <typename T>
uint64_t row_hash(const T* row, const uint64_t* multipliers, int64_t dim) {
  uint64_t sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += (row[d] == 0 ? 0 : hash_word(row[d])) * multipliers[d];
  return sum;
}

/// Non-negative, so that the largest int64 can mean "none".
inline int64_t key_of_hash(uint64_t hash, uint64_t salt) {
  return static_cast<int64_t>(mix_bits(hash + salt) >> 1);
}

}  // namespace torchvq::kernels
