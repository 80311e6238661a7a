// CUDA: three kernels, for sizes, rows and unused codes, like the end of ema_update_.
#include "ops/ema_finish_.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/ema_update.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_finish = kernels::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
void cuda_finish_codes(const cuda_finish::EmaUpdateTask& task, at::Tensor& embed,
                       const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                       const OnDevice& device) {
  const auto sizes = cluster_size.contiguous(), averages = embed_avg.contiguous();
  auto codes = embed.contiguous();
  // Sizes and averages are only read, despite the const_cast.
  const cuda_finish::EmaStep<T> step = {
      task,
      {const_cast<T*>(sizes.const_data_ptr<T>()), const_cast<T*>(averages.const_data_ptr<T>()),
       codes.mutable_data_ptr<T>()}};
  check_launch("ema_finish_", cuda_finish::ema_finish(step, device.queue()));
  if (!codes.is_same(embed)) embed.copy_(codes);
}

void cuda_ema_finish_(at::Tensor& embed, const at::Tensor& cluster_size,
                      const at::Tensor& embed_avg, double decay, double eps,
                      std::string_view metric) {
  const bool unit = detail::check_ema_finish_(embed, cluster_size, embed_avg, decay, eps, metric);
  const OnDevice device(embed);
  const int64_t heads = embed.size(0), size = embed.size(1);
  const auto totals = at::empty({heads}, embed.options().dtype(at::kDouble));
  const auto places = at::empty({2 * heads * size + heads}, embed.options().dtype(at::kInt));
  cuda_finish::EmaUpdateTask task;
  task.heads = heads, task.size = size, task.dim = embed.size(2);
  task.decay = decay, task.step = 1.0 - decay, task.eps = eps;
  task.unit = unit;
  task.totals = totals.mutable_data_ptr<double>();
  task.use = places.mutable_data_ptr<int32_t>();
  task.heaviest = task.use + heads * size;
  task.in_use = task.heaviest + heads * size;
  if (embed.scalar_type() == at::kDouble) {
    cuda_finish_codes<double>(task, embed, cluster_size, embed_avg, device);
  } else {
    cuda_finish_codes<float>(task, embed, cluster_size, embed_avg, device);
  }
}

}  // namespace

TORCHVQ_CUDA_KERNEL(ema_finish_, cuda_ema_finish_)

}  // namespace torchvq
