// The noise of refine_codebooks(), by which codes get out of the first minimum that they meet.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"

namespace torchvq::functional {

struct NoiseOfCodes {
  double scale;   // in units of the standard deviation of each feature over the codes,
  double widest;  // which counts as at most this
  int64_t seed;
  int64_t step;
};

/// Codebooks (K, D) with normal noise. Rank 0 draws it for all.
std::vector<at::Tensor> noisy_codebooks(const std::vector<at::Tensor>& codebooks,
                                        const NoiseOfCodes& noise, const distributed::Group& group);

}  // namespace torchvq::functional
