// Commitment losses of many levels on a CUDA device, and the gradient to the tokens that entered the
// first of them, with the CPU's order of additions. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostScoredLevels = 32;  // of a launch, which takes all of them along

template <typename T>
struct ScoredLevels {
  const T* inputs[kMostScoredLevels] = {};  ///< (rows, dim) each
  const T* codes[kMostScoredLevels] = {};   ///< (rows, dim) each
  int count = 0;
  const bool* mask = nullptr;  ///< (rows,), true for real tokens, or null
  int64_t rows = 0, dim = 0;
};

/// Sums that are added up to a loss, of each level.
int64_t commitment_blocks(int64_t rows, int64_t dim);

template <typename T>
struct CommitmentLossTask {
  ScoredLevels<T> levels;
  double* sums = nullptr;   ///< (levels, commitment_blocks()), scratch
  int64_t* real = nullptr;  ///< the same of their rows
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
  bool continues = false;    ///< grad holds the sum over levels behind these, and real their count
};

Error commitment_gradients(const CommitmentGradientTask<float>& task, const Queue& queue);
Error commitment_gradients(const CommitmentGradientTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
