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

/// A head of a codebook in an update. `first` is the place of its first code in the tensors, which
/// hold all heads.
template <typename T>
struct EmaHead {
  int64_t first;
  T *cluster_size, *embed_avg, *embed;
  std::vector<double> before;  ///< smoothed sizes before the update, if averages begin as codes
  std::vector<bool> faint;     ///< codes that keep their values: no tokens, and next to no size
  double total = 0;            ///< of the sizes after the update
  double mass = 0;             ///< that smoothing adds to the total
};

/// Updates the sizes of a head.
template <typename T>
void update_sizes(const EmaUpdate& update, EmaHead<T>& head) {
  auto* const sizes = head.cluster_size + head.first;
  head.mass = static_cast<double>(update.size) * update.eps;
  head.faint.resize(update.size);
  if (update.from_codebook) head.before.resize(update.size);
  const double total_before =
      update.from_codebook ? kernels::order_free_total(sizes, update.size) : 0.0;
  const double faint_below = kernels::faint_below(update.decay);
  for (int64_t k = 0; k < update.size; ++k) {
    if (update.from_codebook) {
      head.before[k] =
          kernels::smoothed_size(sizes[k], update.eps, total_before, total_before + head.mass);
    }
    const int64_t count = update.counts[head.first + k];
    sizes[k] = static_cast<T>(
        kernels::decayed(sizes[k], update.weights[head.first + k], static_cast<double>(count)));
    head.faint[k] = count == 0 && static_cast<double>(sizes[k]) < faint_below;
  }
  head.total = kernels::order_free_total(sizes, update.size);
}

/// Updates averages and codes from place `begin` to place `end`.
template <typename T, typename Sums>
void update_rows(const EmaUpdate& update, const Sums& sums, const EmaHead<T>& head, int64_t begin,
                 int64_t end) {
  const auto rows = kernels::code_rows_kernel(kernels::cpu_level());
  typename Sums::Reader reader(sums);
  std::vector<double> decoded(update.dim);
  kernels::UnitCodes unit_codes(rows, update.dim);
  for (int64_t slot = begin; slot < end; ++slot) {
    const int64_t k = slot - head.first;
    const double after = kernels::smoothed_size(head.cluster_size[slot], update.eps, head.total,
                                                head.total + head.mass);
    const bool finish = update.finish && !head.faint[k] && after > 0;
    const double weight = update.weights[slot];
    T* const average = head.embed_avg + slot * update.dim;
    T* const code = head.embed + slot * update.dim;
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
    const double before = update.from_codebook ? head.before[k] : 0.0;
    update_row(update, decoded.data(), weight, before, after, finish, average, code);
  }
  unit_codes.finish();
}

/// Moves unused codes of a head to codes with many tokens.
template <typename T>
void draw_unused(const EmaUpdate& update, const EmaHead<T>& head) {
  const auto* const sizes = head.cluster_size + head.first;
  const double unused_below = kernels::unused_below(update.decay, head.total, update.size);
  std::vector<bool> unused(update.size);
  for (int64_t k = 0; k < update.size; ++k)
    unused[k] = head.faint[k] && static_cast<double>(sizes[k]) < unused_below;
  const auto step = [&](int64_t k) {
    return kernels::drawn_by(update.weights[head.first + k], update.decay);
  };
  kernels::draw_unused_codes(sizes, unused, step, update.unit, update.dim, in_parallel,
                             head.embed + head.first * update.dim);
}

/// Sums::Reader(sums).row(slot) returns the SumRow of a code; each thread needs its own reader.
template <typename T, typename Sums>
void update_head(const EmaUpdate& update, const Sums& sums, int64_t index, T* cluster_size,
                 T* embed_avg, T* embed) {
  EmaHead<T> head{index * update.size, cluster_size, embed_avg, embed, {}, {}};
  update_sizes(update, head);
  at::parallel_for(
      head.first, head.first + update.size, std::max<int64_t>(1, 16384 / update.dim),
      [&](int64_t begin, int64_t end) { update_rows(update, sums, head, begin, end); });
  if (update.finish && head.total > 0) draw_unused(update, head);
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
