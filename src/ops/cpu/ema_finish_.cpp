#include "ops/ema_finish_.h"

#include <vector>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include "detail/codebook_state.h"
#include "kernels/cpu/codebook_average.h"
#include "kernels/cpu/unused_codes.h"
#include "ops/cpu/in_parallel.h"

namespace torchvq {
namespace {

template <typename T>
void finish(const at::Tensor& cluster_size, const at::Tensor& embed_avg, double decay, double eps,
            bool unit, at::Tensor& embed) {
  const int64_t size = embed.size(1), dim = embed.size(2);
  const auto* sizes = cluster_size.const_data_ptr<T>();
  const auto* averages = embed_avg.const_data_ptr<T>();
  auto* codes = embed.mutable_data_ptr<T>();
  for (int64_t head = 0; head < embed.size(0); ++head) {
    const double total = kernels::order_free_total(sizes + head * size, size);
    const double mass = total + static_cast<double>(size) * eps;
    const double faint = kernels::faint_below(decay);
    at::parallel_for(
        head * size, (head + 1) * size, std::max<int64_t>(1, 16384 / dim),
        [&](int64_t begin, int64_t end) {
          for (int64_t slot = begin; slot < end; ++slot) {
            const double smoothed = kernels::smoothed_size(sizes[slot], eps, total, mass);
            if (static_cast<double>(sizes[slot]) >= faint && smoothed > 0)
              kernels::write_code(averages + slot * dim, smoothed, unit, dim, codes + slot * dim);
          }
        });
    if (!(total > 0)) continue;
    const double limit = kernels::unused_below(decay, total, size);
    std::vector<bool> unused(size);
    for (int64_t k = 0; k < size; ++k)
      unused[k] = static_cast<double>(sizes[head * size + k]) < limit;
    const auto step = [](int64_t) { return kernels::kDrawn; };
    kernels::draw_unused_codes(sizes + head * size, unused, step, unit, dim, detail::in_parallel,
                               codes + head * size * dim);
  }
}

void ema_finish_(at::Tensor& embed, const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                 double decay, double eps, std::string_view metric) {
  const bool unit = detail::check_ema_finish_(embed, cluster_size, embed_avg, decay, eps, metric);
  auto codes = embed.contiguous();
  if (embed.scalar_type() == at::kDouble) {
    finish<double>(cluster_size.contiguous(), embed_avg.contiguous(), decay, eps, unit, codes);
  } else {
    finish<float>(cluster_size.contiguous(), embed_avg.contiguous(), decay, eps, unit, codes);
  }
  if (!codes.is_same(embed)) embed.copy_(codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("ema_finish_", ema_finish_); }

}  // namespace torchvq
