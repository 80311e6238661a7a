// Commitment losses of one or many levels on a CUDA device, and the gradient of the tokens that entered
// the first level, with the CPU's order of additions. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostScoredLevels = 32;  // per launch, whose arguments hold them

template <typename T>
struct ScoredLevels {
  const T* inputs[kMostScoredLevels] = {};  ///< (rows, dim) each
  /// The codes (rows, dim) of each level; with indices its codebook (heads or 1, size, dim), and a row whose input is
  /// not finite has NaN as its code.
  const T* codes[kMostScoredLevels] = {};
  int64_t head_stride[kMostScoredLevels] = {};  ///< codes between heads, 0 if heads share them
  const int64_t* indices = nullptr;             ///< (rows, stride), of the first level, or null
  int64_t stride = 0, tokens = 0;               ///< tokens: rows of a head
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
  const T* inputs = nullptr;   ///< (count, rows, dim)
  const T* codes = nullptr;    ///< (rows, dim), subtracted from inputs of one level, or null
  int count = 0;               ///< levels, at most kMostScoredLevels
  const bool* mask = nullptr;  ///< (rows,), true for real tokens, or null
  int64_t rows = 0, dim = 0;
  const T* grads = nullptr;  ///< (count,)
  int64_t* real = nullptr;   ///< one number, scratch; unused without a mask
  T* grad = nullptr;         ///< (rows, dim), out
  bool continues = false;    ///< grad already holds the sum over later levels, and real their count
  T share = 1;               ///< multiplies the sum over all levels
  const T* other = nullptr;  ///< (rows, dim), added to the product, or null
};

Error commitment_gradients(const CommitmentGradientTask<float>& task, const Queue& queue);
Error commitment_gradients(const CommitmentGradientTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
