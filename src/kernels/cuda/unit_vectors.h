// Unit vectors on a CUDA device, with the bits of kernels/unit_vector.h. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// x and units are (rows, dim), contiguous.
Error unit_vectors(const float* x, int64_t rows, int64_t dim, float* units, const Queue& queue);
Error unit_vectors(const double* x, int64_t rows, int64_t dim, double* units, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
