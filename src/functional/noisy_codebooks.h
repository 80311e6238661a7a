// The noise with which refine_codebooks() lets codes leave the first local minimum.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"

namespace torchvq::functional {

struct NoiseOfCodes {
  double scale;   // in units of the standard deviation of each feature over the codes,
  double widest;  // which is clamped to this
  int64_t seed;
  int64_t step;
};

/// Returns codebooks (K, D) with normal noise. Rank 0 draws it for all ranks.
std::vector<at::Tensor> noisy_codebooks(const std::vector<at::Tensor>& codebooks,
                                        const NoiseOfCodes& noise, const distributed::Group& group);

}  // namespace torchvq::functional
