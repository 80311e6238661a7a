// CUDA: one launch.
#include "ops/advance_rng_.h"

#include "kernels/cuda/advance_rng_.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
void cuda_advance(const at::Tensor& rng, const at::Tensor& mask) {
  const OnDevice device(rng);
  kernels::TORCHVQ_CUDA_NAMESPACE::AdvanceRngTask<T> task;
  task.step = rng.mutable_data_ptr<int64_t>() + rng.stride(0);
  if (mask.defined()) {
    task.always = false;
    task.mask = mask.const_data_ptr<T>();
    task.count = mask.numel();
  }
  check_launch("advance_rng_", kernels::TORCHVQ_CUDA_NAMESPACE::advance_rng_(task, device.queue()));
}

void cuda_advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  detail::check_advance_rng_(rng, mask);
  if (!mask) {
    cuda_advance<bool>(rng, at::Tensor());
  } else if (mask->scalar_type() == at::kLong) {
    cuda_advance<int64_t>(rng, mask->contiguous());
  } else {
    cuda_advance<bool>(rng, mask->to(at::kBool).contiguous());
  }
}

}  // namespace

TORCHVQ_CUDA_KERNEL(advance_rng_, cuda_advance_rng_)

}  // namespace torchvq
