// latent_quantize on a CUDA device, with the bits of ops/cpu/latent_quantize.cpp: sums are blocked
// by kLatentsPerBlock tokens. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"
#include "kernels/cuda/scalar_tables.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

inline constexpr int64_t kLatentsPerBlock = 1024;

/// The levels[j] values of feature j begin at values[first[j]].
struct LatentLevels {
  int32_t features = 0;
  int32_t first[kMostFeatures] = {}, levels[kMostFeatures] = {};
};

template <typename T>
struct LatentQuantizeTask {
  const T* x = nullptr;            ///< (tokens, features)
  const double* values = nullptr;  ///< (values)
  const bool* mask = nullptr;      ///< (tokens) or null
  int64_t tokens = 0;
  double weight = 0;           ///< of the mean squared difference
  T* codes = nullptr;          ///< (tokens, features)
  int64_t* indices = nullptr;  ///< (tokens)
  double* squares = nullptr;   ///< (blocks of tokens), scratch
  int64_t* real = nullptr;     ///< (blocks of tokens), scratch
  T* loss = nullptr;           ///< one number
};

Error latent_quantize(const LatentLevels& levels, const LatentQuantizeTask<float>& task,
                      const Queue& queue);
Error latent_quantize(const LatentLevels& levels, const LatentQuantizeTask<double>& task,
                      const Queue& queue);

template <typename T>
struct LatentBackwardTask {
  const T *straight = nullptr, *x = nullptr, *codes = nullptr;  ///< (tokens, features)
  const int64_t* indices = nullptr;                             ///< (tokens)
  const int64_t* real = nullptr;                                ///< one number: tokens not masked
  const double* grad_loss = nullptr;                            ///< one number
  int64_t tokens = 0, value_count = 0;
  double commitment = 0, quantization = 0;
  double* sums = nullptr;    ///< (blocks of tokens, values), scratch
  T* grad_x = nullptr;       ///< (tokens, features)
  T* grad_values = nullptr;  ///< (values)
};

Error latent_quantize_backward(const LatentLevels& levels, const LatentBackwardTask<float>& task,
                               const Queue& queue);
Error latent_quantize_backward(const LatentLevels& levels, const LatentBackwardTask<double>& task,
                               const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
