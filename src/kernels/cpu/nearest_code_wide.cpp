#include "kernels/cpu/nearest_code_wide.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace torchvq::kernels {
NearestCodeWideSearch::NearestCodeWideSearch(const NearestCodeWideTask& task, CpuLevel level)
    : task_(task), exact_(nearest_code_exact(level)), offset_(static_cast<size_t>(task.size)) {
  const int64_t panel = exact_.panel, dim = task.dim;
  panel_count_ = (task.size + panel - 1) / panel;
  panels_ = AlignedBuffer<double>(panel_count_ * panel * dim);
  std::fill_n(panels_.data(), panels_.size(), 0.0);
  std::vector<double> unit(static_cast<size_t>(dim));
  for (int64_t k = 0; k < task.size; ++k) {
    const double* code = task.codebook + k * dim;
    const double bias = task.bias ? task.bias[k] : 0.0;
    offset_[k] = task.cosine ? bias : bias * 0.5;
    if (!all_finite(code, dim) || !std::isfinite(bias)) {
      offset_[k] = HUGE_VAL;
      continue;
    }
    if (task.cosine) {
      exact_.unit_row(code, dim, unit.data());
      code = unit.data();
    }
    double* to = panels_.data() + k / panel * panel * dim + k % panel;
    for (int64_t d = 0; d < dim; ++d) to[d * panel] = code[d];
  }
}

bool NearestCodeWideSearch::pack_row(const double* row, double* packed) const {
  if (!all_finite(row, task_.dim)) {
    std::fill_n(packed, task_.dim, 0.0);
    return false;
  }
  if (task_.cosine) {
    exact_.unit_row(row, task_.dim, packed);
  } else {
    std::copy_n(row, task_.dim, packed);
  }
  return true;
}

void NearestCodeWideSearch::rank(double* scores, std::vector<int32_t>& order,
                                 int64_t* indices) const {
  for (int64_t k = 0; k < task_.size; ++k) {
    // A score of NaN (inf - inf after an overflow) counts as the worst, and so do excluded codes.
    scores[k] = std::isnan(scores[k]) || offset_[k] == HUGE_VAL ? HUGE_VAL : scores[k] + offset_[k];
  }
  if (task_.k == 1) {
    indices[0] = std::min_element(scores, scores + task_.size) - scores;
    return;
  }
  order.resize(static_cast<size_t>(task_.size));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + task_.k, order.end(), [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] < scores[b] : a < b;
  });
  std::copy_n(order.begin(), task_.k, indices);
}

void NearestCodeWideSearch::search(const double* x, int64_t count, int64_t* indices) const {
  const int64_t tile = exact_.tile_rows, dim = task_.dim, stride = panel_count_ * exact_.panel;
  AlignedBuffer<double> rows(tile * dim), scores(tile * stride);
  std::vector<int32_t> order;
  for (int64_t first = 0; first < count; first += tile) {
    const int64_t here = std::min(tile, count - first);
    bool finite[16] = {};
    std::fill_n(rows.data(), tile * dim, 0.0);
    for (int64_t r = 0; r < here; ++r)
      finite[r] = pack_row(x + (first + r) * dim, rows.data() + r * dim);
    exact_.score_tile(rows.data(), panels_.data(), panel_count_, dim, task_.cosine, scores.data());
    for (int64_t r = 0; r < here; ++r) {
      int64_t* to = indices + (first + r) * task_.k;
      if (finite[r]) {
        rank(scores.data() + r * stride, order, to);
      } else {
        std::fill_n(to, task_.k, -1);
      }
    }
  }
}

}  // namespace torchvq::kernels
