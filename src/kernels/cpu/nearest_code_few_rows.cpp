#include "kernels/cpu/nearest_code_few_rows.h"

#include <algorithm>
#include <cmath>

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewRows = 9;      // above this, nearest_code_unpacked
constexpr int64_t kGrain = 1 << 16;  // products per thread
constexpr int64_t kCodes = 64;       // in cache while all rows are compared with them

}  // namespace

bool has_few_rows(const NearestCodeTask& task) {
  return task.rows <= kFewRows && !task.cosine && task.dim < (1 << 20);
}

bool nearest_code_few_rows(const NearestCodeTask& task, CpuLevel level,
                           const ParallelFor& parallel_for, const float* x, int64_t* indices) {
  const auto scan = nearest_code_scan(level);
  const auto exact = nearest_code_exact(level);
  AlignedBuffer<float> scores(task.rows * task.size);
  parallel_for(task.size, 1 + kGrain / (task.dim * task.rows), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kCodes) {
      const int64_t last = std::min(first + kCodes, end);
      for (int64_t row = 0; row < task.rows; ++row) {
        float* row_scores = scores.data() + row * task.size;
        scan.score_row(x + row * task.dim, task.dim, task.codebook, task.size, first, last,
                       row_scores);
        for (int64_t k = first; task.bias && k < last; ++k) row_scores[k] -= task.bias[k];
      }
    }
  });

  const double bias_bound = largest_bias(task);
  if (!(bias_bound < kLargeSquare)) return false;
  NearestCodeDecision decision(task, exact);
  KthLargest kth_largest;
  std::vector<int32_t> candidates;
  for (int64_t row = 0; row < task.rows; ++row) {
    const float* row_scores = scores.data() + row * task.size;
    const double x_square = squared_norm(x + row * task.dim, task.dim);
    const double kth = kth_largest.find(scan, row_scores, task.size, task.k);
    if (!(x_square < kLargeSquare) || !(std::abs(kth) < kLargeSquare)) return false;
    const float limit = round_down(limit_of_distance(kth, task.dim, x_square, bias_bound));
    candidates.resize(static_cast<size_t>(task.size));
    candidates.resize(
        static_cast<size_t>(scan.at_least(row_scores, task.size, limit, candidates.data())));
    if (candidates.size() == 1) {
      indices[row] = candidates[0];
    } else {
      decision.decide(x + row * task.dim, candidates, {}, indices + row * task.k);
    }
  }
  return true;
}

}  // namespace torchvq::kernels
