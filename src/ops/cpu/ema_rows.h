// The rows of an EMA update: averages and codes, one head after the other. The caller provides the
// sums, either from a matrix for all codes or directly from the tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/codebook_average.h"
#include "kernels/cpu/unit_codes.h"
#include "kernels/cpu/unused_codes.h"
#include "kernels/fixed_point.h"
#include "ops/cpu/in_parallel.h"

namespace torchvq::detail {

/// Contiguous views of the tensors of a call; the weight already includes (1 - decay).
struct EmaUpdate {
  const int64_t* counts;
  const double* weights;
  int64_t size;
  int64_t dim;
  double eps;
  double decay;
  bool unit;
  bool from_codebook;
  bool finish;
};

/// The fixed-point sums of one code.
struct SumRow {
  const int64_t* words;
  const int64_t* rests;  ///< second words, or null
  int32_t exponent;
};

inline void decode_row(const SumRow& row, int64_t dim, double* sums) {
  for (int64_t d = 0; d < dim; ++d) {
    sums[d] = row.rests == nullptr
                  ? kernels::decode_sum<double>(row.words[d], row.exponent)
                  : kernels::decode_sum_pair(row.words[d], row.rests[d], row.exponent);
  }
}

/// Whether averages are not derived from the codes first: then one vectorized pass suffices, and
/// another one for unit vectors.
template <typename T>
bool is_plain(const EmaUpdate& update) {
  return std::is_same_v<T, float> && !update.from_codebook;
}

/// Updates average and code of one row. `before` and `after` are the smoothed sizes
/// before and after the update.
template <typename T>
void update_row(const EmaUpdate& update, const double* sums, double weight, double before,
                double after, bool finish, T* average, T* code) {
  // Sums beyond the range of the state are clamped.
  constexpr T kMost = std::numeric_limits<T>::max();
  for (int64_t d = 0; d < update.dim; ++d) {
    const T start =
        update.from_codebook
            ? std::clamp(static_cast<T>(static_cast<double>(code[d]) * before), -kMost, kMost)
            : average[d];
    average[d] =
        std::clamp(static_cast<T>(kernels::decayed(start, weight, sums[d])), -kMost, kMost);
  }
  if (finish) kernels::write_code(average, after, update.unit, update.dim, code);
}

/// Sums::Reader(sums).row(slot) returns the SumRow of a code; each thread needs its own reader.
template <typename T, typename Sums>
void update_head(const EmaUpdate& update, const Sums& sums, int64_t head, T* cluster_size,
                 T* embed_avg, T* embed) {
  const int64_t first = head * update.size, last = first + update.size;
  const double mass = static_cast<double>(update.size) * update.eps;
  const double total_before =
      update.from_codebook ? kernels::order_free_total(cluster_size + first, update.size) : 0.0;
  std::vector<double> before(update.from_codebook ? update.size : 0);
  const double faint_below = kernels::faint_below(update.decay);
  std::vector<bool> faint(update.size);
  for (int64_t slot = first; slot < last; ++slot) {
    if (update.from_codebook) {
      before[slot - first] =
          kernels::smoothed_size(cluster_size[slot], update.eps, total_before, total_before + mass);
    }
    cluster_size[slot] = static_cast<T>(kernels::decayed(cluster_size[slot], update.weights[slot],
                                                         static_cast<double>(update.counts[slot])));
    faint[slot - first] =
        update.counts[slot] == 0 && static_cast<double>(cluster_size[slot]) < faint_below;
  }
  const double total = kernels::order_free_total(cluster_size + first, update.size);
  const auto rows = kernels::code_rows_kernel(kernels::cpu_level());
  at::parallel_for(
      first, last, std::max<int64_t>(1, 16384 / update.dim), [&](int64_t begin, int64_t end) {
        typename Sums::Reader reader(sums);
        std::vector<double> decoded(update.dim);
        kernels::UnitCodes unit_codes(rows, update.dim);
        for (int64_t slot = begin; slot < end; ++slot) {
          const double after =
              kernels::smoothed_size(cluster_size[slot], update.eps, total, total + mass);
          const bool finish = update.finish && !faint[slot - first] && after > 0;
          const double weight = update.weights[slot];
          T* const average = embed_avg + slot * update.dim;
          T* const code = embed + slot * update.dim;
          const bool has_tokens = update.counts[slot] != 0;
          if (has_tokens) decode_row(reader.row(slot), update.dim, decoded.data());
          if constexpr (std::is_same_v<T, float>) {
            if (is_plain<T>(update)) {
              float* const to = finish ? code : nullptr;
              if (has_tokens) {
                rows.move(decoded.data(), weight, after, update.dim, average, to);
              } else {
                rows.decay(weight, after, update.dim, average, to);
              }
              if (finish && update.unit) unit_codes.add(code);
              continue;
            }
          }
          if (!has_tokens) std::fill(decoded.begin(), decoded.end(), 0.0);
          update_row(update, decoded.data(), weight,
                     update.from_codebook ? before[slot - first] : 0.0, after, finish, average,
                     code);
        }
        unit_codes.finish();
      });
  if (!update.finish || !(total > 0)) return;
  const double unused_below = kernels::unused_below(update.decay, total, update.size);
  std::vector<bool> unused(update.size);
  for (int64_t k = 0; k < update.size; ++k)
    unused[k] = faint[k] && static_cast<double>(cluster_size[first + k]) < unused_below;
  const auto step = [&](int64_t k) {
    return kernels::drawn_by(update.weights[first + k], update.decay);
  };
  kernels::draw_unused_codes(cluster_size + first, unused, step, update.unit, update.dim,
                             in_parallel, embed + first * update.dim);
}

/// A head without tokens is not updated.
inline bool has_tokens(const EmaUpdate& update, int64_t head) {
  const auto* counts = update.counts + head * update.size;
  return std::any_of(counts, counts + update.size, [](int64_t count) { return count != 0; });
}

template <typename T, typename Sums>
void update_heads(const EmaUpdate& update, const Sums& sums, at::Tensor& cluster_size,
                  at::Tensor& embed_avg, at::Tensor& embed) {
  // Strided state is updated in a contiguous copy and written back.
  auto sizes = cluster_size.contiguous(), averages = embed_avg.contiguous(),
       codes = embed.contiguous();
  for (int64_t head = 0; head < codes.size(0); ++head) {
    if (!has_tokens(update, head)) continue;
    update_head(update, sums, head, sizes.mutable_data_ptr<T>(), averages.mutable_data_ptr<T>(),
                codes.mutable_data_ptr<T>());
  }
  if (!sizes.is_same(cluster_size)) cluster_size.copy_(sizes);
  if (!averages.is_same(embed_avg)) embed_avg.copy_(averages);
  if (!codes.is_same(embed)) embed.copy_(codes);
}

/// (1 - decay) * weight, (H, K).
std::vector<double> step_weights(const at::Tensor& counts, const std::optional<at::Tensor>& weight,
                                 double decay);

}  // namespace torchvq::detail
