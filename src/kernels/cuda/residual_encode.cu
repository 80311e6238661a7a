// One warp per row, so that memory accesses are coalesced.
#include "kernels/cuda/residual_encode.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kThreads = 256;

template <typename T>
__device__ bool is_real(const ResidualRows<T>& rows, int64_t row) {
  return rows.mask == nullptr || rows.mask[row];
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4) begin_rows(ResidualRows<T> rows) {
  for (int64_t row = grid_warp(); row < rows.rows; row += grid_warps()) {
    const bool real = is_real(rows, row);
    for (int64_t d = lane_of_warp(); d < rows.dim; d += kWarp) {
      const int64_t at = row * rows.dim + d;
      rows.left[at] = real ? rows.x[at] : static_cast<T>(NAN);
      rows.quantized[at] = T(0);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    take_codes(ResidualRows<T> rows, ResidualChoice<T> choice) {
  for (int64_t row = grid_warp(); row < rows.rows; row += grid_warps()) {
    const bool real = is_real(rows, row);
    const int64_t found = choice.found[row];
    if (lane_of_warp() == 0) {
      rows.indices[row * rows.stride + choice.level] = !real ? -1 : found < 0 ? 0 : found;
    }
    if (!real) continue;
    const T* code = choice.codes + (found < 0 ? 0 : found) * rows.dim;
    for (int64_t d = lane_of_warp(); d < rows.dim; d += kWarp) {
      const int64_t at = row * rows.dim + d;
      const T value = found < 0 ? static_cast<T>(NAN) : code[d];
      rows.quantized[at] += value;
      rows.left[at] -= value;
    }
  }
}

template <typename T>
Error begin(const ResidualRows<T>& rows, const Queue& queue) {
  if (rows.rows == 0) return nullptr;
  return launch(begin_rows<T>, queue, blocks_for(rows.rows, kThreads / kWarp), kThreads, 0, rows);
}

template <typename T>
Error take(const ResidualRows<T>& rows, const ResidualChoice<T>& choice, const Queue& queue) {
  if (rows.rows == 0) return nullptr;
  return launch(take_codes<T>, queue, blocks_for(rows.rows, kThreads / kWarp), kThreads, 0, rows,
                choice);
}

}  // namespace

Error residual_begin(const ResidualRows<float>& rows, const Queue& queue) {
  return begin(rows, queue);
}

Error residual_begin(const ResidualRows<double>& rows, const Queue& queue) {
  return begin(rows, queue);
}

Error residual_take(const ResidualRows<float>& rows, const ResidualChoice<float>& choice,
                    const Queue& queue) {
  return take(rows, choice, queue);
}

Error residual_take(const ResidualRows<double>& rows, const ResidualChoice<double>& choice,
                    const Queue& queue) {
  return take(rows, choice, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
