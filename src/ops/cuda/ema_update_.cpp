// CUDA: three kernels, for sizes, rows and unused codes. A weight is not validated, which would
// have to wait for the device: a NaN in it becomes NaN in the state, as on the any-device path.
#include "ops/ema_update_.h"

#include "ops/cuda/learning_tasks.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
void cuda_move_state(const EmaCodebook& codebook, const StatisticsRoom& found,
                     const at::Tensor& weight, const EmaRules& rules, const OnDevice& device) {
  const learning::Tasks tasks(codebook.step<T>(found, weight, rules));
  check_launch("ema_update_", learning::ema_update(tasks, device.queue()));
}

void cuda_ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                      const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                      double decay, double eps, std::string_view metric,
                      const std::optional<at::Tensor>& weight_, bool from_codebook, bool finish) {
  const bool unit = detail::check_ema_update_(
      cluster_size, embed_avg, embed, {counts, sums, exponents, decay, eps, metric, weight_});
  const OnDevice device(embed);
  const StatisticsRoom found = {counts.contiguous(), sums.contiguous(), exponents.contiguous()};
  const auto weight = ema_weight(weight_, counts.sizes());
  const EmaCodebook codebook(cluster_size, embed_avg, embed);
  const bool wide = embed.scalar_type() == at::kDouble;
  const auto move = wide ? cuda_move_state<double> : cuda_move_state<float>;
  move(codebook, found, weight, {decay, eps, unit, from_codebook, finish}, device);
  codebook.store();
}

}  // namespace

TORCHVQ_CUDA_KERNEL(ema_update_, cuda_ema_update_)

}  // namespace torchvq
