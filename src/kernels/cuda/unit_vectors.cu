// Squares are added in index order, so one thread sums a row; a warp loads 32 elements of 32 rows
// at a time, coalesced, and its threads then read across. In the gradient, eight threads per row are the lanes of the
// CPU's sums.
#include "kernels/cuda/unit_vectors.h"

#include "kernels/cuda/lanes-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kSide = 32;   // rows per block, and elements of each in shared memory
constexpr int kHeight = 8;  // warps per block

template <typename T>
__global__ void __launch_bounds__(kSide* kHeight)
    unit_rows(const T* x, int64_t rows, int64_t dim, T* units) {
  __shared__ T tile[kSide][kSide + 1];
  __shared__ double divisors[kSide];
  const int lane = lane_of_warp(), warp = warp_of_block();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSide;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kSide; first < rows; first += step) {
    double squares = 0;  // sum of row first + lane, in the first warp
    for (int64_t begin = 0; begin < dim; begin += kSide) {
      for (int r = warp; r < kSide; r += kHeight) {
        const bool inside = first + r < rows && begin + lane < dim;
        tile[r][lane] = inside ? x[(first + r) * dim + begin + lane] : T(0);
      }
      __syncthreads();
      if (warp == 0) {
        // Zeros beyond the row do not change the sum: squares are never -0.
        for (int i = 0; i < kSide; ++i) {
          const auto value = static_cast<double>(tile[lane][i]);
          squares += value * value;
        }
      }
      __syncthreads();
    }
    if (warp == 0) {
      const double norm = sqrt(squares);
      divisors[lane] = norm == 0 ? 1 : norm;
    }
    __syncthreads();
    for (int r = warp; r < kSide && first + r < rows; r += kHeight) {
      for (int64_t i = lane; i < dim; i += kSide) {
        const int64_t at = (first + r) * dim + i;
        units[at] = static_cast<T>(static_cast<double>(x[at]) / divisors[r]);
      }
    }
    __syncthreads();  // before the next rows overwrite the divisors
  }
}

constexpr int kGradientThreads = 256;
constexpr int kRowsAtOnce = kGradientThreads / kLaneThreads;

template <typename T>
__global__ void __launch_bounds__(kGradientThreads) unit_gradients(UnitGradientTask<T> task) {
  const int lane = threadIdx.x % kLaneThreads, place = threadIdx.x / kLaneThreads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowsAtOnce;
  // All threads of a block run the same number of rounds, as the shuffles require.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsAtOnce; first < task.rows;
       first += step) {
    const int64_t row = first + place;
    const int64_t dim = row < task.rows ? task.dim : 0;
    const T *grad = task.grad + row * dim, *x = task.x + row * dim, *units = task.units + row * dim;
    double squares = 0, along = 0;
    for (int64_t i = lane; i < dim; i += kLaneThreads) {
      const double g = grad[i], a = x[i], u = units[i];
      squares += a * a;
      along += g * u;
    }
    const double norm = sqrt(lane_total(squares)), factor = -lane_total(along) / norm;
    T* to = task.grad_x + row * dim;
    for (int64_t i = lane; i < dim; i += kLaneThreads) {
      // As the CPU's rows, whose token has the factor 0.
      const double straight = 1 / norm * grad[i];
      const double value = factor == 0.0 ? straight : straight + 0.0 * x[i] + factor * units[i];
      to[i] = norm == 0 ? T(0) : static_cast<T>(value);
    }
  }
}

template <typename T>
Error run_gradients(const UnitGradientTask<T>& task, const Queue& queue) {
  if (task.rows * task.dim == 0) return nullptr;
  return launch(unit_gradients<T>, queue, blocks_for(task.rows, kRowsAtOnce), kGradientThreads, 0,
                task);
}

template <typename T>
Error run_units(const T* x, int64_t rows, int64_t dim, T* units, const Queue& queue) {
  if (rows * dim == 0) return nullptr;
  return launch(unit_rows<T>, queue, blocks_for(rows, kSide), kSide * kHeight, 0, x, rows, dim,
                units);
}

}  // namespace

Error unit_vectors(const float* x, int64_t rows, int64_t dim, float* units, const Queue& queue) {
  return run_units(x, rows, dim, units, queue);
}
Error unit_vectors(const double* x, int64_t rows, int64_t dim, double* units, const Queue& queue) {
  return run_units(x, rows, dim, units, queue);
}

Error unit_vectors_backward(const UnitGradientTask<float>& task, const Queue& queue) {
  return run_gradients(task, queue);
}
Error unit_vectors_backward(const UnitGradientTask<double>& task, const Queue& queue) {
  return run_gradients(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
