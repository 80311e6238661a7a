// CUDA: three kernels for sizes, rows and unused codes. A weight is not looked at, which would wait
// for the device: NaN in it becomes NaN in the state, as on the any-device path.
#include "ops/ema_update_.h"

#include <ATen/ops/empty.h>

#include "kernels/cpu/unused_codes.h"
#include "kernels/cuda/ema_update.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_ema = kernels::TORCHVQ_CUDA_NAMESPACE;

/// Strided state is updated in a contiguous copy and written back.
template <typename T>
void cuda_move_state(const cuda_ema::EmaUpdateTask& task, at::Tensor& cluster_size,
                     at::Tensor& embed_avg, at::Tensor& embed, const OnDevice& device) {
  auto sizes = cluster_size.contiguous(), averages = embed_avg.contiguous(),
       codes = embed.contiguous();
  const cuda_ema::EmaState<T> state = {sizes.mutable_data_ptr<T>(), averages.mutable_data_ptr<T>(),
                                       codes.mutable_data_ptr<T>()};
  check_launch("ema_update_", cuda_ema::ema_update(task, state, device.queue()));
  if (!sizes.is_same(cluster_size)) cluster_size.copy_(sizes);
  if (!averages.is_same(embed_avg)) embed_avg.copy_(averages);
  if (!codes.is_same(embed)) embed.copy_(codes);
}

void cuda_ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                      const at::Tensor& counts_, const at::Tensor& sums_,
                      const at::Tensor& exponents_, double decay, double eps,
                      std::string_view metric, const std::optional<at::Tensor>& weight_,
                      bool from_codebook, bool finish) {
  const bool unit = detail::check_ema_update_(
      cluster_size, embed_avg, embed, {counts_, sums_, exponents_, decay, eps, metric, weight_});
  const OnDevice device(embed);
  const auto counts = counts_.contiguous(), sums = sums_.contiguous(),
             exponents = exponents_.contiguous();
  at::Tensor weight;
  if (weight_) weight = weight_->to(at::kDouble).expand(counts.sizes()).contiguous();
  const int64_t heads = embed.size(0), size = embed.size(1);
  const auto before = at::empty({heads, size}, counts.options().dtype(at::kDouble));
  const auto totals = at::empty({heads}, before.options());
  const auto places = at::empty({2 * heads * size + heads}, counts.options().dtype(at::kInt));

  cuda_ema::EmaUpdateTask task;
  task.counts = counts.const_data_ptr<int64_t>();
  task.sums = sums.const_data_ptr<int64_t>();
  task.exponents = exponents.const_data_ptr<int32_t>();
  if (weight.defined()) task.weight = weight.const_data_ptr<double>();
  task.two_words = sums.size(0) == 2;
  task.heads = heads, task.size = size, task.dim = embed.size(2);
  task.step = 1.0 - decay, task.eps = eps, task.unused_below = kernels::unused_below(decay);
  task.unit = unit, task.from_codebook = from_codebook, task.finish = finish;
  task.before = before.mutable_data_ptr<double>();
  task.totals = totals.mutable_data_ptr<double>();
  task.unused = places.mutable_data_ptr<int32_t>();
  task.heaviest = task.unused + heads * size;
  task.in_use = task.heaviest + heads * size;
  if (embed.scalar_type() == at::kDouble) {
    cuda_move_state<double>(task, cluster_size, embed_avg, embed, device);
  } else {
    cuda_move_state<float>(task, cluster_size, embed_avg, embed, device);
  }
}

}  // namespace

TORCHVQ_CUDA_KERNEL(ema_update_, cuda_ema_update_)

}  // namespace torchvq
