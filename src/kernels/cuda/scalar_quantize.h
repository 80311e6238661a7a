// The scalar quantizers on a CUDA device, with the bits of
// kernels/cpu/scalar_quantize.h. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

#include "kernels/cuda/scalar_tables.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// x and codes (rows, features), indices (rows). A row that is not finite has codes NaN and index 0.
template <typename T>
struct ScalarQuantizeTask {
  const T* x = nullptr;
  int64_t rows = 0;
  T* codes = nullptr;
  int64_t* indices = nullptr;
};

Error scalar_quantize(const ScalarTables<float>& tables, const ScalarQuantizeTask<float>& task,
                      const Queue& queue);
Error scalar_quantize(const ScalarTables<double>& tables, const ScalarQuantizeTask<double>& task,
                      const Queue& queue);

/// to = grad * gain * b'(x + shift), (rows, features).
Error scalar_slope(const ScalarSlopes& slopes, const float* grad, const float* x, int64_t rows,
                   float* to, const Queue& queue);

/// A sequence of levels, each of which quantizes the residual of the ones before: x and quantized
/// (rows, features), scales (quantizers, features), indices (rows, quantizers).
struct ScalarStackTask {
  const float *x = nullptr, *scales = nullptr;
  int64_t rows = 0, quantizers = 0;
  float* quantized = nullptr;
  int64_t* indices = nullptr;
};

Error scalar_walk(const ScalarTables<float>& tables, const ScalarStackTask& task,
                  const Queue& queue);

/// to = grad * (1 - (1 - g_0) (1 - g_1) ...), where g_q is the slope of the
/// bound at residual / scale[q].
struct ScalarStackSlopeTask {
  const float *grad = nullptr, *x = nullptr, *scales = nullptr;
  int64_t rows = 0, quantizers = 0;
  bool tanh = false;
  float* to = nullptr;
};

Error scalar_walk_slope(const ScalarTables<float>& tables, const ScalarStackSlopeTask& task,
                        const Queue& queue);

/// code = scale where x > 0, else -scale; the first feature is the most significant bit of the
/// index. x and codes (rows, bits), bits at most 62.
template <typename T>
struct SignQuantizeTask {
  const T* x = nullptr;
  int64_t rows = 0, bits = 0;
  T scale = 1;
  T* codes = nullptr;
  int64_t* indices = nullptr;
};

Error sign_quantize(const SignQuantizeTask<float>& task, const Queue& queue);
Error sign_quantize(const SignQuantizeTask<double>& task, const Queue& queue);

/// Decodes indices, of which only the low bits are read; 0 for a negative index.
template <typename T>
struct SignDecodeTask {
  const int64_t* indices = nullptr;
  int64_t rows = 0, bits = 0;
  T scale = 1;
  T* codes = nullptr;
};

Error sign_decode(const SignDecodeTask<float>& task, const Queue& queue);
Error sign_decode(const SignDecodeTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
