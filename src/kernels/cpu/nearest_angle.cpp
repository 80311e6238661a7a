#include "kernels/cpu/nearest_angle.h"

#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/nearest_code_decide.h"
#include "kernels/cpu/nearest_code_exact.h"
#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/projected_level.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kDim = 8;
constexpr int64_t kMostFewRows = 48;     // above this, normalizing all codes pays off
constexpr int64_t kMostCodes = 1 << 16;  // scores fit the second-level cache

// A score is a sum of 8 products divided by a root of 8 squares: at most 20 roundings of a number
// up to 1. The deciding score uses codes and rows divided by rounded norms, 8 roundings each, and
// its half square, which is the same for all codes up to 16 roundings.
const double kAngleError = chain_error(64, kFloatUnit);

class NearestAngle {
 public:
  NearestAngle(const float* codebook, int64_t size, CpuLevel level)
      : codebook_(codebook),
        size_(size),
        level_(projected_level<float>(level)),
        scan_(nearest_code_scan(level)),
        exact_(nearest_code_exact(level)),
        inverse_(size),
        scores_(size),
        candidates_(static_cast<size_t>(size)),
        usable_(level_.inverse_norms(codebook, size, inverse_.data())) {}

  /// Whether the scores of all codes have a bounded error.
  bool usable() const { return usable_; }

  /// Returns -1 for a row that is not finite.
  int64_t search(const float* row) {
    if (!all_finite(row, kDim)) return -1;
    level_.angles(row, codebook_, inverse_.data(), size_, scores_.data());
    const float best = scan_.largest(scores_.data(), size_);
    const float limit = round_down(static_cast<double>(best) - kReach * kAngleError);
    const int64_t found = scan_.at_least(scores_.data(), size_, limit, candidates_.data());
    return found == 1 ? candidates_[0] : decide(row, found);
  }

 private:
  /// Compares unit vectors by float64 sums; the lowest index wins ties.
  int64_t decide(const float* row, int64_t found) {
    double least = HUGE_VAL;
    int64_t nearest = 0;
    for (int64_t i = 0; i < found; ++i) {
      const int64_t k = candidates_[static_cast<size_t>(i)];
      float unit[kDim];
      level_.unit_vectors(codebook_ + k * kDim, 1, kDim, unit);
      const float* const code = unit;
      double score = 0;
      exact_.pair_scores(row, kDim, &code, 1, false, &score);
      if (score < least) least = score, nearest = k;
    }
    return nearest;
  }

  const float* codebook_;
  int64_t size_;
  ProjectedLevelKernel<float> level_;
  NearestCodeScan scan_;
  NearestCodeExact exact_;
  AlignedBuffer<float> inverse_, scores_;
  std::vector<int32_t> candidates_;
  bool usable_;
};

}  // namespace

bool has_few_angles(int64_t rows, int64_t dim, int64_t size) {
  return rows <= kMostFewRows && dim == kDim && size <= kMostCodes;
}

bool nearest_angle(const float* rows, int64_t count, const float* codebook, int64_t size,
                   CpuLevel level, int64_t* indices) {
  NearestAngle angle(codebook, size, level);
  for (int64_t row = 0; angle.usable() && row < count; ++row) {
    indices[row] = angle.search(rows + row * kDim);
  }
  return angle.usable();
}

}  // namespace torchvq::kernels
