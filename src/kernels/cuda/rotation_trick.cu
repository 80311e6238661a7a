// Eight threads per row, one for each lane of the CPU's sums.
#include "kernels/cuda/rotation_trick.h"

#include "kernels/cuda/lanes-inl.h"
#include "kernels/rotation_trick.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = kThreads / kLaneThreads;

template <typename T>
__global__ void __launch_bounds__(kThreads) backward_rows(RotationTrickTask<T> task) {
  const int lane = threadIdx.x % kLaneThreads, place = threadIdx.x / kLaneThreads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowsAtOnce;
  // All threads of a block run the same number of rounds, as the shuffles require.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsAtOnce; first < task.rows;
       first += step) {
    const int64_t row = first + place;
    const int64_t dim = row < task.rows ? task.dim : 0;
    const T *grad = task.grad + row * dim, *x = task.x + row * dim, *code = task.codes + row * dim;
    double xx = 0, cc = 0, xc = 0, gx = 0, gc = 0;
    for (int64_t i = lane; i < dim; i += kLaneThreads) {
      const double g = grad[i], a = x[i], b = code[i];
      xx += a * a;
      cc += b * b;
      xc += a * b;
      gx += g * a;
      gc += g * b;
    }
    const auto weights = rotation_weights(lane_total(xx), lane_total(cc), lane_total(xc),
                                          lane_total(gx), lane_total(gc));
    const bool straight = weights.token == 0.0 && weights.code == 0.0;
    T* to = task.grad_x + row * dim;
    for (int64_t i = lane; i < dim; i += kLaneThreads) {
      // Not 0 * x: a token with a straight-through gradient may be infinite.
      to[i] = static_cast<T>(straight ? weights.grad * grad[i]
                                      : weights.grad * grad[i] + weights.token * x[i] +
                                            weights.code * code[i]);
    }
  }
}

template <typename T>
Error run_rotation(const RotationTrickTask<T>& task, const Queue& queue) {
  if (task.rows * task.dim == 0) return nullptr;
  return launch(backward_rows<T>, queue, blocks_for(task.rows, kRowsAtOnce), kThreads, 0, task);
}

}  // namespace

Error rotation_trick_backward(const RotationTrickTask<float>& task, const Queue& queue) {
  return run_rotation(task, queue);
}
Error rotation_trick_backward(const RotationTrickTask<double>& task, const Queue& queue) {
  return run_rotation(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
