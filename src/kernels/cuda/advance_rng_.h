// The next step of a generator on a CUDA device. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

template <typename T>
struct AdvanceRngTask {
  int64_t* step = nullptr;  ///< one number, in and out
  bool always = true;       ///< without a mask
  const T* mask = nullptr;  ///< (count,): otherwise the step advances if one is not 0
  int64_t count = 0;
};

Error advance_rng_(const AdvanceRngTask<bool>& task, const Queue& queue);
Error advance_rng_(const AdvanceRngTask<int64_t>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
