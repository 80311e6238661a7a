// Gradient of the rotation trick on a CUDA device, with the bits of
// kernels/cpu/rotation_trick.h. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// All (rows, dim), contiguous.
template <typename T>
struct RotationTrickTask {
  const T *grad = nullptr, *x = nullptr, *codes = nullptr;
  T* grad_x = nullptr;
  int64_t rows = 0, dim = 0;
};

Error rotation_trick_backward(const RotationTrickTask<float>& task, const Queue& queue);
Error rotation_trick_backward(const RotationTrickTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
