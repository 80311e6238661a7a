// Codes that no token has used for a while. Torch-free. src/detail/unused_codes.cpp does the same
// operations with tensor operators, in the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/unit_codes.h"
#include "kernels/root.h"
#include "kernels/unused_below.h"

namespace torchvq::kernels {

constexpr int64_t kDrawnPerTask = 16384;  // elements

/// Positions of at most `most` codes in use, heaviest first; ties by position.
template <typename T>
std::vector<int64_t> heaviest_codes(const T* sizes, const std::vector<bool>& unused, int64_t most) {
  std::vector<int64_t> used;
  for (int64_t k = 0; k < static_cast<int64_t>(unused.size()); ++k)
    if (!unused[k]) used.push_back(k);
  const auto end = used.begin() + std::min<int64_t>(most, static_cast<int64_t>(used.size()));
  std::partial_sort(used.begin(), end, used.end(), [&](int64_t a, int64_t b) {
    return sizes[a] > sizes[b] || (sizes[a] == sizes[b] && a < b);
  });
  used.erase(end, used.end());
  return used;
}

/// code += step * (target - code), then normalized if `unit`.
template <typename T>
void draw_code(const T* target, double step, bool unit, int64_t dim, T* code) {
  constexpr double kMost = std::numeric_limits<T>::max();
  for (int64_t d = 0; d < dim; ++d) {
    const auto from = static_cast<double>(code[d]);
    const double next = from + step * (static_cast<double>(target[d]) - from);
    code[d] = static_cast<T>(std::clamp(next, -kMost, kMost));
  }
  if (!unit) return;
  const double norm = norm_in_order(code, dim);
  if (!(norm > 0)) return;
  for (int64_t d = 0; d < dim; ++d) code[d] = static_cast<T>(static_cast<double>(code[d]) / norm);
}

/// Draws codes of one dtype; finish() completes them.
template <typename T>
class DrawnCodes {
 public:
  DrawnCodes(const CodeRowsKernel& /*rows*/, bool unit, int64_t dim) : unit_(unit), dim_(dim) {}
  void draw(const T* target, double step, T* code) { draw_code(target, step, unit_, dim_, code); }
  void finish() {}

 private:
  bool unit_;
  int64_t dim_;
};

template <>
class DrawnCodes<float> {
 public:
  DrawnCodes(const CodeRowsKernel& rows, bool unit, int64_t dim)
      : rows_(rows), unit_(unit), dim_(dim), unit_codes_(rows, dim) {}
  void draw(const float* target, double step, float* code) {
    rows_.draw(target, step, dim_, code);
    if (unit_) unit_codes_.add(code);
  }
  void finish() { unit_codes_.finish(); }

 private:
  const CodeRowsKernel& rows_;
  bool unit_;
  int64_t dim_;
  UnitCodes unit_codes_;
};

/// Moves the unused codes of one head towards its heaviest codes, one each; if there are more
/// unused codes than codes in use, they start again at the heaviest. `step(k)` is the
/// fraction of the distance.
template <typename T, typename Step>
void draw_unused_codes(const T* sizes, const std::vector<bool>& unused, const Step& step, bool unit,
                       int64_t dim, const ParallelFor& parallel_for, T* codes) {
  std::vector<int64_t> moved;
  for (int64_t k = 0; k < static_cast<int64_t>(unused.size()); ++k)
    if (unused[k]) moved.push_back(k);
  const auto count = static_cast<int64_t>(moved.size());
  if (count == 0) return;
  const auto heaviest = heaviest_codes(sizes, unused, count);
  if (heaviest.empty()) return;
  const auto rows = code_rows_kernel(cpu_level());
  // Codes in use, which are the targets, do not move.
  parallel_for(count, 1 + kDrawnPerTask / dim, [&](int64_t begin, int64_t end) {
    DrawnCodes<T> drawn(rows, unit, dim);
    for (int64_t rank = begin; rank < end; ++rank) {
      const int64_t k = moved[rank];
      const int64_t target = heaviest[rank % static_cast<int64_t>(heaviest.size())];
      drawn.draw(codes + target * dim, step(k), codes + k * dim);
    }
    drawn.finish();
  });
}

}  // namespace torchvq::kernels
