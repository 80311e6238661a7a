#include "kernels/cpu/nearest_code_few_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewRows = 9;  // above this, nearest_code_unpacked,
// which takes no short codes: for these, rows of float64 are few until packing in panels pays.
constexpr int64_t kFewWideRows = 16, kShortWideCode = 15;
constexpr int64_t kGrain = 1 << 16;  // products per thread
constexpr int64_t kCodes = 64;       // in cache while all rows are compared with them

template <typename T>
class FewRowsSearch {
 public:
  FewRowsSearch(const NearestCodeTaskOf<T>& task, CpuLevel level, const T* x)
      : task_(task),
        x_(x),
        scan_(nearest_code_scan(level)),
        reader_(of_type<T>(scan_)),
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
  /// Whether float32 scores can represent the rows; makes their unit vectors for the cosine metric.
  bool rows_usable() {
    for (int64_t row = 0; row < task_.rows; ++row) {
      const T* const values = x_ + row * task_.dim;
      const double square = squared_norm(values, task_.dim);
      squares_[row] = square;
      if (!(square < kLargeSquare)) return false;
      if (!task_.cosine) continue;
      if (kWide && square != 0 && square < kLeastWideSquare) return false;  // the norm is lost
      T* const unit = units_.data() + row * task_.dim;
      of_type<T>(exact_).unit_rows(&values, 1, task_.dim, &unit);
    }
    return true;
  }

  /// Scores of all rows and codes [first, last); false for codes that float32 cannot represent.
  bool score(int64_t first, int64_t last) {
    const T* const codebook = task_.codebook;
    const int64_t size = task_.size, dim = task_.dim;
    if (task_.cosine && !reader_.inverse_norms(dim, codebook, size, first, last, inverse_.data()))
      return false;
    for (int64_t row = 0; row < task_.rows; ++row) {
      float* const scores = scores_.data() + row * size;
      if (task_.cosine) {
        reader_.angle_row(units_.data() + row * dim, dim, codebook, size, first, last,
                          inverse_.data(), scores);
      } else {
        reader_.score_row(x_ + row * dim, dim, codebook, size, first, last, scores);
      }
      for (int64_t k = first; task_.bias && k < last; ++k)
        scores[k] -= static_cast<float>(task_.bias[k]);
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

  static constexpr bool kWide = std::is_same_v<T, double>;

  const NearestCodeTaskOf<T>& task_;
  const T* x_;
  NearestCodeScan scan_;
  const NearestCodeReader<T>& reader_;
  NearestCodeExact exact_;
  NearestCodeDecisionOf<T> decision_;
  double squares_[kFewWideRows] = {};  ///< squared norms of the rows
  AlignedBuffer<T> units_, inverse_;
  AlignedBuffer<float> scores_;
  KthLargest kth_largest_;
  std::vector<int32_t> candidates_;
};

}  // namespace

template <typename T>
bool has_few_rows(const NearestCodeTaskOf<T>& task) {
  const bool more = std::is_same_v<T, double> && task.dim <= kShortWideCode;
  return task.rows <= (more ? kFewWideRows : kFewRows) && task.dim < (1 << 20);
}
template bool has_few_rows(const NearestCodeTaskOf<float>& task);
template bool has_few_rows(const NearestCodeTaskOf<double>& task);

template <typename T>
bool nearest_code_few_rows(const NearestCodeTaskOf<T>& task, CpuLevel level,
                           const ParallelFor& parallel_for, const T* x, int64_t* indices) {
  return FewRowsSearch<T>(task, level, x).search(parallel_for, indices);
}
template bool nearest_code_few_rows(const NearestCodeTaskOf<float>&, CpuLevel, const ParallelFor&,
                                    const float*, int64_t*);
template bool nearest_code_few_rows(const NearestCodeTaskOf<double>&, CpuLevel, const ParallelFor&,
                                    const double*, int64_t*);

}  // namespace torchvq::kernels
