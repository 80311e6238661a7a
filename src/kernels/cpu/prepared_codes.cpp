#include "kernels/cpu/prepared_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/nearest_code_decide.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewestDims = 16, kMostDims = 1 << 14;
constexpr double kLargestInteger = 127;
// Beyond these norms, a scale or a score could leave float32; below them, a
// code is all rounding error.
constexpr double kSmallestNorm = 1e-12, kLargestNorm = 1e12;

class CodePreparation {
 public:
  CodePreparation(const float* codes, int64_t size, int64_t dim, uint8_t* to)
      : codes_(codes),
        size_(size),
        dim_(dim),
        to_(to),
        center_(static_cast<size_t>(prepared_center_floats(dim))),
        centred_(static_cast<size_t>(dim)) {}

  void run() {
    std::memset(to_, 0, static_cast<size_t>(prepared_bytes(size_, dim_)));
    average();
    bool usable = shift_ < kLargestNorm;
    for (int64_t panel = 0; usable && panel < prepared_panels(size_); ++panel) {
      usable = prepare_panel(panel);
    }
    reinterpret_cast<PreparedHead*>(to_)->usable = usable ? 1 : 0;
  }

 private:
  const float* code(int64_t k) const { return codes_ + k * dim_; }

  /// Centres on the mean of the finite codes: subtracting what they have in common
  /// saves bits of each code.
  void average() {
    std::vector<double> sum(static_cast<size_t>(dim_));
    double count = 0;
    for (int64_t k = 0; k < size_; ++k) {
      if (!all_finite(code(k), dim_)) continue;
      ++count;
      for (int64_t d = 0; d < dim_; ++d) sum[static_cast<size_t>(d)] += code(k)[d];
    }
    double square = 0;
    for (size_t d = 0; d < sum.size(); ++d) {
      center_[d] = static_cast<float>(count > 0 ? sum[d] / count : 0);
      square += static_cast<double>(center_[d]) * static_cast<double>(center_[d]);
    }
    shift_ = count > 0 ? std::sqrt(square) : HUGE_VAL;
    std::memcpy(to_ + sizeof(PreparedHead), center_.data(), center_.size() * sizeof(float));
  }

  bool prepare_panel(int64_t index) {
    uint8_t* const at = const_cast<uint8_t*>(PreparedCodes{to_, size_, dim_}.panel(index));
    auto& facts = *reinterpret_cast<PreparedPanel*>(at);
    std::fill_n(facts.offsets, kPreparedCodes, HUGE_VALF);
    uint8_t* const blocks = at + sizeof(PreparedPanel);
    std::memset(blocks, 128, static_cast<size_t>(prepared_blocks(dim_) * 4 * kPreparedCodes));
    const int64_t first = index * kPreparedCodes;
    const int64_t last = std::min(first + kPreparedCodes, size_);
    for (int64_t k = first; k < last; ++k) {
      if (all_finite(code(k), dim_) && !prepare_code(k, k - first, facts, blocks)) return false;
    }
    return true;
  }

  /// False for a code that is too large.
  bool prepare_code(int64_t k, int64_t j, PreparedPanel& facts, uint8_t* blocks) {
    double square = 0, largest = 0;
    for (int64_t d = 0; d < dim_; ++d) {
      const double value =
          static_cast<double>(code(k)[d]) - static_cast<double>(center_[static_cast<size_t>(d)]);
      centred_[static_cast<size_t>(d)] = value;
      square += value * value;
      largest = std::max(largest, std::abs(value));
    }
    const double norm = std::sqrt(square);
    if (!(norm < kLargestNorm)) return false;
    facts.scales[j] = norm > kSmallestNorm ? static_cast<float>(largest / kLargestInteger) : 0.0F;
    const double lost = round_code(static_cast<double>(facts.scales[j]), j, blocks);
    bound(norm, lost, j, facts);
    return true;
  }

  /// Writes the integers of a code; returns the norm of the rounding error.
  double round_code(double scale, int64_t j, uint8_t* blocks) const {
    double square = 0;
    for (int64_t d = 0; d < dim_; ++d) {
      const double value = centred_[static_cast<size_t>(d)];
      const double integer =
          scale > 0 ? std::clamp(std::nearbyint(value / scale), -kLargestInteger, kLargestInteger)
                    : 0.0;
      blocks[(d / 4 * kPreparedCodes + j) * 4 + d % 4] = static_cast<uint8_t>(integer + 128);
      square += (value - integer * scale) * (value - integer * scale);
    }
    return std::sqrt(square);
  }

  /// norm: of the code minus the centre. By Cauchy-Schwarz, rounding changes a score by at most the
  /// norm of the row times the rounding error of the code, plus the rounding error of the row times
  /// the norm of the rounded code.
  void bound(double norm, double lost, int64_t j, PreparedPanel& facts) const {
    const double up = 1 + 1e-5;
    const ScoreError error = score_error(dim_, norm * up, 0, shift_ * up);
    const double rounding = lost + prepared_row_rounding(dim_) * (norm + lost);
    const double intercept = kReach / 2 * error.intercept;
    facts.slopes[j] = static_cast<float>((kReach / 2 * error.slope + rounding) * up);
    facts.intercepts[j] = static_cast<float>(intercept * up);
    facts.offsets[j] = static_cast<float>(norm * norm / 2 - intercept);
  }

  const float* codes_;
  int64_t size_, dim_;
  uint8_t* to_;
  double shift_ = 0;  ///< norm of the centre
  std::vector<float> center_;
  std::vector<double> centred_;  ///< the current code minus the centre
};

}  // namespace

int64_t prepared_bytes(int64_t size, int64_t dim) {
  if (dim < kFewestDims || dim > kMostDims) return 0;
  return static_cast<int64_t>(sizeof(PreparedHead)) +
         static_cast<int64_t>(sizeof(float)) * prepared_center_floats(dim) +
         prepared_panels(size) * prepared_panel_bytes(dim);
}

void prepare_codes(const float* codes, int64_t size, int64_t dim, uint8_t* to) {
  CodePreparation(codes, size, dim, to).run();
}

}  // namespace torchvq::kernels
