#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/random.h"

namespace torchvq::detail {

/// The key of a stream of random numbers, from the state `rng` (2,) of a quantizer.
inline uint64_t read_key(const at::Tensor& rng_, int64_t purpose, int64_t stream) {
  const auto rng = rng_.contiguous();
  const auto* state = rng.const_data_ptr<int64_t>();
  return kernels::random_key(static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]),
                             static_cast<uint64_t>(purpose), static_cast<uint64_t>(stream));
}

}  // namespace torchvq::detail
