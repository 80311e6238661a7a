// CUDA: integer atomics, whose order does not matter: always the bits of the CPU.
#include "ops/code_statistics.h"

#include <ATen/ops/zeros.h>

#include "ops/cuda/learning_tasks.h"

namespace torchvq {
namespace {

detail::StatisticsTensors cuda_code_statistics(const at::Tensor& x, const at::Tensor& indices,
                                               const at::Tensor& exponents_,
                                               const std::optional<at::Tensor>& mask) {
  using namespace detail::TORCHVQ_CUDA_NAMESPACE;
  detail::check_code_statistics(x, indices, exponents_, mask);
  const OnDevice device(x);
  const LearnedTokens tokens(x, indices, mask);
  const auto exponents = exponents_.contiguous();
  const int64_t heads = x.size(0), dim = x.size(2), size = exponents.size(1);
  const auto words = detail::sum_words(tokens.x.scalar_type());
  const StatisticsRoom room = {at::zeros({heads, size}, indices.options()),
                               at::zeros({words, heads, size, dim}, indices.options()),
                               at::zeros({heads, size}, exponents.options())};
  const learning::Tasks tasks(statistics_task(tokens, exponents, room));
  check_launch("code_statistics", learning::code_statistics(tasks, device.queue()));
  return {room.counts, room.sums, room.used};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(code_statistics, cuda_code_statistics)

}  // namespace torchvq
