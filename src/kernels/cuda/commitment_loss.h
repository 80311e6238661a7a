// Commitment losses of many levels on a CUDA device, and the gradient of the tokens that entered
// the first level, with the CPU's order of additions. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostScoredLevels = 32;  // per launch, whose arguments hold them

template <typename T>
struct ScoredLevels {
  const T* inputs[kMostScoredLevels] = {};  ///< (rows, dim) each
  const T* codes[kMostScoredLevels] = {};   ///< (rows, dim) each
  int count = 0;
  const bool* mask = nullptr;  ///< (rows,), true for real tokens, or null
  int64_t rows = 0, dim = 0;
};

/// Number of partial sums per level, which are added up to its loss.
int64_t commitment_blocks(int64_t rows, int64_t dim);

template <typename T>
struct CommitmentLossTask {
  ScoredLevels<T> levels;
  double* sums = nullptr;   ///< (levels, commitment_blocks()), scratch
  int64_t* real = nullptr;  ///< (levels, commitment_blocks()), scratch: rows that count
  T* losses = nullptr;      ///< (levels,), out
};

Error commitment_losses(const CommitmentLossTask<float>& task, const Queue& queue);
Error commitment_losses(const CommitmentLossTask<double>& task, const Queue& queue);

template <typename T>
struct CommitmentGradientTask {
  ScoredLevels<T> levels;
  const T* grads = nullptr;  ///< (levels,)
  int64_t* real = nullptr;   ///< one number, scratch; unused without a mask
  T* grad = nullptr;         ///< (rows, dim), out
  bool continues = false;    ///< grad already holds the sum over later levels, and real their count
};

Error commitment_gradients(const CommitmentGradientTask<float>& task, const Queue& queue);
Error commitment_gradients(const CommitmentGradientTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
