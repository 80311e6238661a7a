// One thread per value. A block processes as many whole rows as fit its threads, so that indices
// are assembled in shared memory. Memory accesses are coalesced.
#include "kernels/cuda/scalar_quantize.h"

#include "kernels/cuda/scalar_place-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

/// The tables are in shared memory because the threads of a warp read different features.
template <typename T>
struct SharedTables {
  T changes[kMostChanges];
  int first[kMostFeatures], levels[kMostFeatures];

  __device__ void read(const ScalarTables<T>& tables) {
    for (int i = threadIdx.x; i < kMostChanges; i += kPlaceThreads) changes[i] = tables.changes[i];
    for (int j = threadIdx.x; j < tables.features; j += kPlaceThreads) {
      first[j] = tables.first[j];
      levels[j] = tables.levels[j];
    }
    __syncthreads();
  }

  /// Number of changes at or below the value, which must be finite.
  __device__ int level(int feature, T value) const {
    int low = 0, high = levels[feature] - 1;
    const T* own = changes + first[feature];
    while (low < high) {
      const int middle = (low + high) / 2;
      if (value >= own[middle]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  __device__ T code(int feature, int level, bool symmetric) const {
    const int count = levels[feature];
    return symmetric ? static_cast<T>(level * 2 - (count - 1)) / static_cast<T>(count - 1)
                     : static_cast<T>(level - count / 2) / static_cast<T>(count / 2);
  }
};

/// The index of a row with these levels, or -1 if a value was not finite.
template <typename T>
__device__ int64_t index_of(const SharedTables<T>& tables, const int* levels, int features) {
  int64_t index = 0, basis = 1;
  for (int j = 0; j < features; ++j) {
    if (levels[j] < 0) return -1;
    index += levels[j] * basis;
    basis *= tables.levels[j];
  }
  return index;
}

template <typename T>
__global__ void __launch_bounds__(kPlaceThreads)
    quantize_values(ScalarTables<T> tables, ScalarQuantizeTask<T> task) {
  __shared__ SharedTables<T> shared;
  __shared__ int levels[kPlaceThreads];
  __shared__ bool broken[kPlaceThreads];
  shared.read(tables);
  const int features = tables.features;
  const RowPlace place(features);
  for (int64_t first = place.begin(); first < task.rows; first += place.step()) {
    const bool holds = place.holds(first, task.rows);
    const int64_t at = first * features + threadIdx.x;
    int level = -1;
    if (holds) {
      const T value = task.x[at];
      if (is_finite(value)) level = shared.level(place.feature, value);
    }
    levels[threadIdx.x] = level;
    __syncthreads();
    if (place.leads(first, task.rows)) {
      const int64_t index = index_of(shared, levels + threadIdx.x * features, features);
      broken[threadIdx.x] = index < 0;
      task.indices[first + threadIdx.x] = index < 0 ? 0 : index;
    }
    __syncthreads();
    if (holds) {
      task.codes[at] = broken[place.row] ? static_cast<T>(NAN)
                                         : shared.code(place.feature, level, tables.symmetric != 0);
    }
  }
}

/// exp(-v) for v in [0, 40]: the steps of kernels/cpu/scalar_quantize-inl.h.
__device__ float exp_of_minus(float v) {
  const float exponent = v * -1.44269504F;
  const float shifted = exponent + 12582912.0F;
  const float rest = exponent - (shifted - 12582912.0F);
  float power = 1.5403530e-4F;
  power = power * rest + 1.3333558e-3F;
  power = power * rest + 9.6181291e-3F;
  power = power * rest + 5.5504109e-2F;
  power = power * rest + 2.4022651e-1F;
  power = power * rest + 6.9314718e-1F;
  power = power * rest + 1.0F;
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
}

__device__ float tanh_slope(float z) {
  const float size = fabsf(z);
  const float e = exp_of_minus(2.0F * (size < 20.0F ? size : 20.0F));
  const float slope = 4.0F * e / ((1.0F + e) * (1.0F + e));
  return z == z ? slope : z;
}

__device__ float bound_slope(bool tanh, float z) {
  return tanh ? tanh_slope(z) : fabsf(z) <= 1.0F ? 1.0F : 0.0F;
}

__global__ void __launch_bounds__(kPlaceThreads)
    slope_values(ScalarSlopes slopes, const float* grad, const float* x, int64_t rows, float* to) {
  __shared__ float gains[kMostFeatures], shifts[kMostFeatures];
  for (int j = threadIdx.x; j < slopes.features; j += kPlaceThreads) {
    gains[j] = slopes.gain[j];
    shifts[j] = slopes.shift[j];
  }
  __syncthreads();
  const RowPlace place(slopes.features);
  for (int64_t first = place.begin(); first < rows; first += place.step()) {
    if (!place.holds(first, rows)) continue;
    const int64_t at = first * slopes.features + threadIdx.x;
    const float z = x[at] + shifts[place.feature];
    to[at] = grad[at] * (gains[place.feature] * bound_slope(slopes.tanh != 0, z));
  }
}

__global__ void __launch_bounds__(kPlaceThreads)
    walk_values(ScalarTables<float> tables, ScalarStackTask task) {
  __shared__ SharedTables<float> shared;
  __shared__ int levels[kPlaceThreads];
  __shared__ bool broken[kPlaceThreads];
  shared.read(tables);
  const int features = tables.features;
  const RowPlace place(features);
  for (int64_t first = place.begin(); first < task.rows; first += place.step()) {
    const bool holds = place.holds(first, task.rows);
    const bool leads = place.leads(first, task.rows);
    const int64_t at = first * features + threadIdx.x;
    float left = holds ? task.x[at] : 0, sum = 0;
    bool lost = false;  // whether the row led by this thread had a level that was not finite
    for (int64_t q = 0; q < task.quantizers; ++q) {
      int level = -1;
      if (holds) {
        const float scale = task.scales[q * features + place.feature], value = left / scale;
        float code = value - value;  // NaN where the value is not finite
        if (code == code) {
          level = shared.level(place.feature, value);
          code = shared.code(place.feature, level, tables.symmetric != 0);
        }
        const float taken = code * scale;
        sum += taken;
        left -= taken;
      }
      levels[threadIdx.x] = level;
      __syncthreads();
      if (leads) {
        const int64_t index = index_of(shared, levels + threadIdx.x * features, features);
        lost |= index < 0;
        task.indices[(first + threadIdx.x) * task.quantizers + q] = index < 0 ? 0 : index;
      }
      __syncthreads();
    }
    if (leads) broken[threadIdx.x] = lost;
    __syncthreads();
    if (holds) task.quantized[at] = broken[place.row] ? NAN : sum;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kPlaceThreads)
    walk_slope_values(ScalarTables<float> tables, ScalarStackSlopeTask task) {
  __shared__ SharedTables<float> shared;
  shared.read(tables);
  const int features = tables.features;
  const RowPlace place(features);
  for (int64_t first = place.begin(); first < task.rows; first += place.step()) {
    if (!place.holds(first, task.rows)) continue;
    const int64_t at = first * features + threadIdx.x;
    float left = task.x[at], closed = 1;
    for (int64_t q = 0; q < task.quantizers; ++q) {
      const float scale = task.scales[q * features + place.feature], z = left / scale;
      closed *= 1.0F - bound_slope(task.tanh, z);
      float code = z - z;
      if (code == code) {
        code = shared.code(place.feature, shared.level(place.feature, z), tables.symmetric != 0);
      }
      left -= code * scale;
    }
    task.to[at] = task.grad[at] * (1.0F - closed);
  }
}

template <typename T>
__global__ void __launch_bounds__(kPlaceThreads) sign_values(SignQuantizeTask<T> task) {
  __shared__ int signs[kPlaceThreads];  // -1: not finite
  __shared__ bool broken[kPlaceThreads];
  const int bits = static_cast<int>(task.bits);
  const RowPlace place(bits);
  for (int64_t first = place.begin(); first < task.rows; first += place.step()) {
    const bool holds = place.holds(first, task.rows);
    const int64_t at = first * bits + threadIdx.x;
    int sign = -1;
    if (holds) {
      const T value = task.x[at];
      if (is_finite(value)) sign = value > T(0) ? 1 : 0;
    }
    signs[threadIdx.x] = sign;
    __syncthreads();
    if (place.leads(first, task.rows)) {
      const int* own = signs + threadIdx.x * bits;
      int64_t index = 0;
      bool lost = false;
      for (int d = 0; d < bits; ++d) {
        lost |= own[d] < 0;
        index = (index << 1) | (own[d] > 0 ? 1 : 0);
      }
      broken[threadIdx.x] = lost;
      task.indices[first + threadIdx.x] = lost ? 0 : index;
    }
    __syncthreads();
    if (holds) {
      task.codes[at] = broken[place.row] ? static_cast<T>(NAN)
                       : sign > 0        ? task.scale
                                         : -task.scale;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kPlaceThreads) decode_signs(SignDecodeTask<T> task) {
  const int bits = static_cast<int>(task.bits);
  const RowPlace place(bits);
  for (int64_t first = place.begin(); first < task.rows; first += place.step()) {
    if (!place.holds(first, task.rows)) continue;
    const int64_t index = task.indices[first + place.row];
    const bool set = (index >> (bits - 1 - place.feature)) & 1;
    task.codes[first * bits + threadIdx.x] = index < 0 ? T(0) : set ? task.scale : -task.scale;
  }
}

template <typename T>
Error run_quantize(const ScalarTables<T>& tables, const ScalarQuantizeTask<T>& task,
                   const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(quantize_values<T>, queue, tiles_for(task.rows, tables.features), kPlaceThreads, 0,
                tables, task);
}

template <typename T>
Error run_signs(const SignQuantizeTask<T>& task, const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(sign_values<T>, queue, tiles_for(task.rows, task.bits), kPlaceThreads, 0, task);
}

template <typename T>
Error run_decode(const SignDecodeTask<T>& task, const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(decode_signs<T>, queue, tiles_for(task.rows, task.bits), kPlaceThreads, 0, task);
}

}  // namespace

Error scalar_quantize(const ScalarTables<float>& tables, const ScalarQuantizeTask<float>& task,
                      const Queue& queue) {
  return run_quantize(tables, task, queue);
}

Error scalar_quantize(const ScalarTables<double>& tables, const ScalarQuantizeTask<double>& task,
                      const Queue& queue) {
  return run_quantize(tables, task, queue);
}

Error scalar_slope(const ScalarSlopes& slopes, const float* grad, const float* x, int64_t rows,
                   float* to, const Queue& queue) {
  if (rows == 0) return nullptr;
  return launch(slope_values, queue, tiles_for(rows, slopes.features), kPlaceThreads, 0, slopes,
                grad, x, rows, to);
}

Error scalar_walk(const ScalarTables<float>& tables, const ScalarStackTask& task,
                  const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(walk_values, queue, tiles_for(task.rows, tables.features), kPlaceThreads, 0, tables,
                task);
}

Error scalar_walk_slope(const ScalarTables<float>& tables, const ScalarStackSlopeTask& task,
                        const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(walk_slope_values, queue, tiles_for(task.rows, tables.features), kPlaceThreads, 0,
                tables, task);
}

Error sign_quantize(const SignQuantizeTask<float>& task, const Queue& queue) {
  return run_signs(task, queue);
}

Error sign_quantize(const SignQuantizeTask<double>& task, const Queue& queue) {
  return run_signs(task, queue);
}

Error sign_decode(const SignDecodeTask<float>& task, const Queue& queue) {
  return run_decode(task, queue);
}

Error sign_decode(const SignDecodeTask<double>& task, const Queue& queue) {
  return run_decode(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
