// Draws one of K codes, or several different ones, by their scores on a CUDA device, by the formula
// of kernels/cpu/sample_codes.h. The exponential is the device's own, so draws may differ from the
// CPU's if two weights differ only in their last bits. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

struct SampleCodesTask {
  const double* scores = nullptr;  ///< (rows, size)
  const int64_t* rng = nullptr;    ///< seed and step, read by the device
  uint64_t purpose = 0, stream = 0;
  uint64_t position = 0;  ///< of the first score among all draws
  int64_t rows = 0, size = 0;
  int64_t count = 1;           ///< codes for each row, at most size
  double temperature = 1;      ///< above 0
  double far = 0;              ///< lags below it count by the logarithm of the chance
  int64_t* indices = nullptr;  ///< (rows, count)
};

Error sample_codes(const SampleCodesTask& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
