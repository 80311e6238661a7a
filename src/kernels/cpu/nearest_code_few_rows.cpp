#include "kernels/cpu/nearest_code_few_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewRows = 9;      // above this, nearest_code_unpacked
constexpr int64_t kGrain = 1 << 16;  // products per thread
constexpr int64_t kCodes = 64;       // in cache while all rows are compared with them

class FewRowsSearch {
 public:
  FewRowsSearch(const NearestCodeTask& task, CpuLevel level, const float* x)
      : task_(task),
        x_(x),
        scan_(nearest_code_scan(level)),
        exact_(nearest_code_exact(level)),
        decision_(task, exact_),
        units_(task.cosine ? task.rows * task.dim : 0),
        inverse_(task.cosine ? task.size : 0),
        scores_(task.rows * task.size),
        candidates_(static_cast<size_t>(task.size)) {}

  bool search(const ParallelFor& parallel_for, int64_t* indices) {
    // A code whose bias is not finite ranks behind all others, whatever its score.
    if (task_.bias && !all_finite(task_.bias, task_.size)) return false;
    const double bias_bound = largest_bias(task_);
    if (!(bias_bound < kLargeSquare) || !rows_usable()) return false;
    std::atomic<bool> usable{true};
    parallel_for(task_.size, 1 + kGrain / (task_.dim * task_.rows),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t first = begin; first < end; first += kCodes) {
                     if (!score(first, std::min(first + kCodes, end))) usable = false;
                   }
                 });
    if (!usable) return false;
    for (int64_t row = 0; row < task_.rows; ++row) {
      if (!settle(row, bias_bound, indices + row * task_.k)) return false;
    }
    return true;
  }

 private:
  /// Whether float32 can represent the rows; makes their unit vectors for the cosine metric.
  bool rows_usable() {
    for (int64_t row = 0; row < task_.rows; ++row) {
      const float* const values = x_ + row * task_.dim;
      squares_[row] = squared_norm(values, task_.dim);
      if (!(squares_[row] < kLargeSquare)) return false;
      float* const unit = units_.data() + row * task_.dim;
      if (task_.cosine) exact_.unit_rows(&values, 1, task_.dim, &unit);
    }
    return true;
  }

  /// Scores of all rows and codes [first, last); false for codes that float32 cannot represent.
  bool score(int64_t first, int64_t last) {
    const float* const codebook = task_.codebook;
    const int64_t size = task_.size, dim = task_.dim;
    if (task_.cosine && !scan_.inverse_norms(dim, codebook, size, first, last, inverse_.data()))
      return false;
    for (int64_t row = 0; row < task_.rows; ++row) {
      float* const scores = scores_.data() + row * size;
      if (task_.cosine) {
        scan_.angle_row(units_.data() + row * dim, dim, codebook, size, first, last,
                        inverse_.data(), scores);
      } else {
        scan_.score_row(x_ + row * dim, dim, codebook, size, first, last, scores);
      }
      for (int64_t k = first; task_.bias && k < last; ++k) scores[k] -= task_.bias[k];
    }
    return true;
  }

  bool settle(int64_t row, double bias_bound, int64_t* indices) {
    if (task_.cosine && squares_[row] == 0 && !task_.bias) {
      std::iota(indices, indices + task_.k, 0);  // no angle to any code: the lowest index wins
      return true;
    }
    const float* const scores = scores_.data() + row * task_.size;
    const double kth = kth_largest_.find(scan_, scores, task_.size, task_.k);
    if (!(std::abs(kth) < kLargeSquare)) return false;
    const float limit =
        round_down(task_.cosine ? limit_of_angle(kth, task_.dim, bias_bound)
                                : limit_of_distance(kth, task_.dim, squares_[row], bias_bound));
    candidates_.resize(static_cast<size_t>(task_.size));
    candidates_.resize(
        static_cast<size_t>(scan_.at_least(scores, task_.size, limit, candidates_.data())));
    if (candidates_.size() == 1) {
      indices[0] = candidates_[0];
    } else {
      decision_.decide(x_ + row * task_.dim, candidates_, {}, indices);
    }
    return true;
  }

  const NearestCodeTask& task_;
  const float* x_;
  NearestCodeScan scan_;
  NearestCodeExact exact_;
  NearestCodeDecision decision_;
  double squares_[kFewRows] = {};  ///< squared norms of the rows
  AlignedBuffer<float> units_, inverse_, scores_;
  KthLargest kth_largest_;
  std::vector<int32_t> candidates_;
};

}  // namespace

bool has_few_rows(const NearestCodeTask& task) {
  return task.rows <= kFewRows && task.dim < (1 << 20);
}

bool nearest_code_few_rows(const NearestCodeTask& task, CpuLevel level,
                           const ParallelFor& parallel_for, const float* x, int64_t* indices) {
  return FewRowsSearch(task, level, x).search(parallel_for, indices);
}

}  // namespace torchvq::kernels
