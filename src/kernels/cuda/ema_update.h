// One step of a codebook's moving averages with the operations of src/ops/cpu/ema_rows.h, in
// float64; sums over codes in fixed point.
#pragma once

#include <cstdint>

#include "kernels/cuda/tasks.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// What kernels/unused_below.h says of a code.
enum Use : int32_t { kInUse, kFaint, kUnused };

struct EmaUpdateTask {
  const int64_t* counts = nullptr;     ///< (heads, size)
  const int64_t* sums = nullptr;       ///< (words, heads, size, dim)
  const int32_t* exponents = nullptr;  ///< (heads, size)
  const double* weight = nullptr;      ///< (heads, size) or null: 1
  bool two_words = false;
  int64_t heads = 0, size = 0, dim = 0;
  double decay = 0, step = 0;  ///< step: 1 - decay
  double eps = 0;
  bool unit = false, from_codebook = false, finish = false;
  // Scratch.
  double* before = nullptr;   ///< (heads, size): smoothed sizes
  double* totals = nullptr;   ///< (heads,): after the step
  int32_t* use = nullptr;     ///< (heads, size): kInUse, kFaint or kUnused
  int32_t* in_use = nullptr;  ///< (heads,): codes in use; -1: the head does not change
  int32_t* heaviest =
      nullptr;  ///< (heads, size): codes in use, the heaviest first; then the unused
};

/// The state, in float or double: cluster_size (heads, size), embed_avg and
/// embed (heads, size, dim).
template <typename T>
struct EmaState {
  T *cluster_size = nullptr, *embed_avg = nullptr, *embed = nullptr;
};

template <typename T>
struct EmaStep : EmaUpdateTask {
  EmaState<T> state;
};

/// Either all codebooks `finish`, or none.
Error ema_update(const Tasks<EmaStep<float>>& steps, const Queue& queue);
Error ema_update(const Tasks<EmaStep<double>>& steps, const Queue& queue);

/// ema_finish_: computes codes from unchanged averages. It reads sizes, decay, step, eps, unit and the scratch arrays except `before`, and writes embed.
Error ema_finish(const EmaStep<float>& step, const Queue& queue);
Error ema_finish(const EmaStep<double>& step, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
