#include "kernels/cpu/nearest_code_prepared.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/prepared_scan.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kMostRows = 32;
constexpr int64_t kGrain = 1 << 18;                           // products per thread
constexpr double kSmallestNorm = 1e-12, kLargestNorm = 1e12;  // of rows
constexpr int64_t kLine = 64 / sizeof(float);                 // of a cache, in floats

class PreparedSearch {
 public:
  PreparedSearch(const NearestCodeTask& task, const PreparedCodes& prepared, CpuLevel level,
                 const float* x)
      : task_(task),
        prepared_(prepared),
        x_(x),
        table_(prepared_scan(level)),
        scan_(nearest_code_scan(level)),
        exact_(nearest_code_exact(level)),
        decision_(task, exact_),
        stride_(prepared_panels(task.size) * kPreparedCodes),
        words_(2 * prepared_blocks(task.dim) * task.rows),
        scores_(stride_ * task.rows),
        places_(task.size) {}

  bool search(const ParallelFor& parallel_for, int64_t* indices) {
    if (!round_rows()) return false;
    const int64_t products = task_.dim * task_.rows * kPreparedCodes;
    parallel_for(prepared_panels(task_.size), 1 + kGrain / products,
                 [&](int64_t begin, int64_t end) {
                   table_.score(rows_, task_.rows, prepared_.panel(0), task_.dim, begin, end,
                                scores_.data(), stride_);
                 });
    for (int64_t row = 0; row < task_.rows; ++row) {
      if (!settle(row, indices + row)) return false;
    }
    return true;
  }

 private:
  bool round_rows() {
    const int64_t padded = prepared_center_floats(task_.dim);
    const int64_t words = 2 * prepared_blocks(task_.dim);
    AlignedBuffer<float> centred(padded);
    AlignedBuffer<int16_t> integers(padded);
    for (int64_t row = 0; row < task_.rows; ++row) {
      const float norm =
          table_.center_row(x_ + row * task_.dim, prepared_.center(), task_.dim, centred.data());
      if (!(norm > kSmallestNorm && norm < kLargestNorm)) return false;
      rows_[row] = table_.round_row(centred.data(), norm, task_.dim, integers.data(),
                                    words_.data() + row * words);
    }
    return true;
  }

  /// The best score less twice its error is a score that some code reaches.
  bool settle(int64_t row, int64_t* index) {
    const float* const scores = scores_.data() + row * stride_;
    const float best = scan_.largest(scores, task_.size);
    if (!std::isfinite(best) || scan_.at_least(scores, task_.size, best, places_.data()) == 0) {
      return false;
    }
    const int64_t winner = places_[0];
    const PreparedPanel& facts = prepared_.facts(winner / kPreparedCodes);
    const int64_t j = winner % kPreparedCodes;
    const double error =
        static_cast<double>(rows_[row].norm) * facts.slopes[j] + facts.intercepts[j];
    const float limit = round_down(best - 2 * error);
    const int64_t found = scan_.at_least(scores, task_.size, limit, places_.data());
    if (found == 1) {
      *index = places_[0];
      return true;
    }
    // None: these bytes are no copy.
    if (found == 0 || found > 4 + task_.size / 8) return false;
    decide(row, found, index);
    return true;
  }

  void decide(int64_t row, int64_t found, int64_t* index) {
    candidates_.assign(places_.data(), places_.data() + found);
    for (const int64_t candidate : candidates_) {
      const float* const code = task_.codebook + candidate * task_.dim;
      for (int64_t d = 0; d < task_.dim; d += kLine) __builtin_prefetch(code + d);
    }
    decision_.decide(x_ + row * task_.dim, candidates_, {}, index);
  }

  const NearestCodeTask& task_;
  const PreparedCodes& prepared_;
  const float* x_;
  PreparedScan table_;
  NearestCodeScan scan_;
  NearestCodeExact exact_;
  NearestCodeDecision decision_;
  int64_t stride_;
  PreparedRow rows_[kMostRows];
  AlignedBuffer<int32_t> words_;
  AlignedBuffer<float> scores_;
  AlignedBuffer<int32_t> places_;
  std::vector<int32_t> candidates_;
};

}  // namespace

PreparedScan prepared_scan(CpuLevel level) {
#if defined(TORCHVQ_HAVE_X86_LEVELS)
  if (level >= CpuLevel::kAvx512 && !__builtin_cpu_supports("avx512vnni")) level = CpuLevel::kAvx2;
#endif
  return TORCHVQ_AT_LEVEL(level, prepared_scan)();
}

bool has_prepared(const NearestCodeTask& task, const PreparedCodes& prepared) {
  return task.k == 1 && task.rows <= kMostRows && !task.cosine && task.bias == nullptr &&
         prepared.usable();
}

bool nearest_code_prepared(const NearestCodeTask& task, const PreparedCodes& prepared,
                           CpuLevel level, const ParallelFor& parallel_for, const float* x,
                           int64_t* indices) {
  return PreparedSearch(task, prepared, level, x).search(parallel_for, indices);
}

}  // namespace torchvq::kernels
