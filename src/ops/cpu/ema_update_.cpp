#include "ops/ema_update_.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include "detail/codebook_state.h"
#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/codebook_average.h"
#include "kernels/cpu/unused_codes.h"
#include "kernels/fixed_point.h"

namespace torchvq {
namespace {

/// Contiguous views of one call's tensors; the weight already holds (1 - decay).
struct Update {
  const int64_t* counts;
  const int64_t* sums;
  const int64_t* rests;  // second words, or null
  const int32_t* exponents;
  const double* weights;
  int64_t size;
  int64_t dim;
  double eps;
  double unused_below;
  bool unit;
  bool from_codebook;
  bool finish;
};

double decoded(const Update& update, int64_t slot, int64_t at) {
  if (update.rests == nullptr)
    return kernels::decode_sum<double>(update.sums[at], update.exponents[slot]);
  return kernels::decode_sum_pair(update.sums[at], update.rests[at], update.exponents[slot]);
}

/// A row without tokens whose code follows its average, and is no unit vector.
bool only_decays(const Update& update, int64_t slot) {
  return update.counts[slot] == 0 && !update.from_codebook && !update.unit;
}

/// Averages and code of one row. `before` and `after` are the smoothed sizes around the update.
template <typename T>
void update_row(const Update& update, int64_t slot, double before, double after, bool unused,
                T* embed_avg, T* embed) {
  const double weight = update.weights[slot];
  T* average = embed_avg + slot * update.dim;
  T* code = embed + slot * update.dim;
  // A sum beyond the range of the state ends at it.
  constexpr T kMost = std::numeric_limits<T>::max();
  for (int64_t d = 0; d < update.dim; ++d) {
    const T start =
        update.from_codebook
            ? std::clamp(static_cast<T>(static_cast<double>(code[d]) * before), -kMost, kMost)
            : average[d];
    const auto next = static_cast<T>(
        kernels::decayed(start, weight, decoded(update, slot, slot * update.dim + d)));
    average[d] = std::clamp(next, -kMost, kMost);
  }
  if (update.finish && !unused && after > 0)
    kernels::write_code(average, after, update.unit, update.dim, code);
}

template <typename T>
void update_head(const Update& update, int64_t head, T* cluster_size, T* embed_avg, T* embed) {
  const int64_t first = head * update.size, last = first + update.size;
  const double mass = static_cast<double>(update.size) * update.eps;
  const double total_before = kernels::order_free_total(cluster_size + first, update.size);
  std::vector<double> before(update.size);
  std::vector<bool> unused(update.size);
  for (int64_t slot = first; slot < last; ++slot) {
    before[slot - first] =
        kernels::smoothed_size(cluster_size[slot], update.eps, total_before, total_before + mass);
    cluster_size[slot] = static_cast<T>(kernels::decayed(cluster_size[slot], update.weights[slot],
                                                         static_cast<double>(update.counts[slot])));
    unused[slot - first] =
        update.counts[slot] == 0 && static_cast<double>(cluster_size[slot]) < update.unused_below;
  }
  const double total = kernels::order_free_total(cluster_size + first, update.size);
  const auto rows = kernels::code_rows_kernel(kernels::cpu_level());
  at::parallel_for(
      first, last, std::max<int64_t>(1, 16384 / update.dim), [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          const double after =
              kernels::smoothed_size(cluster_size[slot], update.eps, total, total + mass);
          const bool idle = unused[slot - first];
          if constexpr (std::is_same_v<T, float>) {
            if (only_decays(update, slot)) {
              float* code =
                  update.finish && !idle && after > 0 ? embed + slot * update.dim : nullptr;
              rows.decay(update.weights[slot], after, update.dim, embed_avg + slot * update.dim,
                         code);
              continue;
            }
          }
          update_row(update, slot, before[slot - first], after, idle, embed_avg, embed);
        }
      });
  if (!update.finish || !(total > 0)) return;
  const auto step = [&](int64_t k) { return std::clamp(update.weights[first + k], 0.0, 1.0); };
  kernels::draw_unused_codes(cluster_size + first, unused, step, update.unit, update.dim,
                             embed + first * update.dim);
}

/// A head without tokens stays as it is.
bool has_tokens(const Update& update, int64_t head) {
  const auto* counts = update.counts + head * update.size;
  int64_t total = 0;
  for (int64_t k = 0; k < update.size; ++k) total += counts[k];
  return total != 0;
}

template <typename T>
void update_heads(const Update& update, at::Tensor& cluster_size, at::Tensor& embed_avg,
                  at::Tensor& embed) {
  // Strided state is updated in a contiguous copy and written back.
  auto sizes = cluster_size.contiguous(), averages = embed_avg.contiguous(),
       codes = embed.contiguous();
  for (int64_t head = 0; head < codes.size(0); ++head) {
    if (!has_tokens(update, head)) continue;
    update_head(update, head, sizes.mutable_data_ptr<T>(), averages.mutable_data_ptr<T>(),
                codes.mutable_data_ptr<T>());
  }
  if (!sizes.is_same(cluster_size)) cluster_size.copy_(sizes);
  if (!averages.is_same(embed_avg)) embed_avg.copy_(averages);
  if (!codes.is_same(embed)) embed.copy_(codes);
}

at::Tensor step_weights(const at::Tensor& counts, const std::optional<at::Tensor>& weight,
                        double decay) {
  auto weights = at::ones(counts.sizes(), counts.options().dtype(at::kDouble));
  if (weight.has_value()) {
    TORCH_CHECK_VALUE(weight->isfinite().all().item<bool>(),
                      "ema_update_: expected weight to be finite, but got NaN or infinity");
    weights.copy_(*weight);
  }
  return weights.mul_(1.0 - decay);
}

void ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                 const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                 double decay, double eps, std::string_view metric,
                 const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  const bool unit = detail::check_ema_update_(
      cluster_size, embed_avg, embed, {counts, sums, exponents, decay, eps, metric, weight});
  const auto weights = step_weights(counts, weight, decay);
  const auto c = counts.contiguous(), s = sums.contiguous(), e = exponents.contiguous();
  const auto* words = s.const_data_ptr<int64_t>();
  const Update update{c.const_data_ptr<int64_t>(),
                      words,
                      s.size(0) == 2 ? words + embed.numel() : nullptr,
                      e.const_data_ptr<int32_t>(),
                      weights.const_data_ptr<double>(),
                      embed.size(1),
                      embed.size(2),
                      eps,
                      kernels::unused_below(decay),
                      unit,
                      from_codebook,
                      finish};
  if (embed.scalar_type() == at::kDouble) {
    update_heads<double>(update, cluster_size, embed_avg, embed);
  } else {
    update_heads<float>(update, cluster_size, embed_avg, embed);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("ema_update_", ema_update_); }

}  // namespace torchvq
