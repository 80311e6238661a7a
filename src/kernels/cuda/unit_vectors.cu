// Squares are added in index order, so one thread sums a row; a warp loads 32 elements of 32 rows
// at a time, coalesced, and its threads then read across.
#include "kernels/cuda/unit_vectors.h"

#include "kernels/cuda/cuda.h"

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

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
