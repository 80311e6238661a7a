#include "kernels/cuda/advance_rng_.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 1024;

/// In one block.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1) advance_step(AdvanceRngTask<T> task) {
  __shared__ int found[kThreads / kWarp];
  bool any = task.always;
  for (int64_t i = threadIdx.x; i < task.count; i += kThreads) any |= task.mask[i] != 0;
  const int of_warp = __any_sync(kWholeWarp, any);
  if (lane_of_warp() == 0) found[warp_of_block()] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int advances = 0;
  for (const int own : found) advances |= own;
  // Unsigned addition wraps around, where signed addition would overflow.
  if (advances != 0) *task.step = static_cast<int64_t>(static_cast<uint64_t>(*task.step) + 1);
}

template <typename T>
Error advance(const AdvanceRngTask<T>& task, const Queue& queue) {
  return launch(advance_step<T>, queue, 1U, kThreads, 0, task);
}

}  // namespace

Error advance_rng_(const AdvanceRngTask<bool>& task, const Queue& queue) {
  return advance(task, queue);
}
Error advance_rng_(const AdvanceRngTask<int64_t>& task, const Queue& queue) {
  return advance(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
