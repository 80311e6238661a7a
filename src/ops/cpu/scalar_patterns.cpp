#include "ops/cpu/scalar_patterns.h"

#include <algorithm>
#include <limits>

namespace torchvq::detail {
namespace {

constexpr int64_t kMostCompared = 65;

}  // namespace

bool is_compared(at::IntArrayRef levels) {
  return std::all_of(levels.begin(), levels.end(),
                     [](int64_t count) { return count <= kMostCompared; });
}

std::vector<float> repeated(const std::vector<float>& values) {
  std::vector<float> pattern;
  for (int64_t i = 0; i < kernels::kScalarRepeat; ++i) {
    pattern.insert(pattern.end(), values.begin(), values.end());
  }
  return pattern;
}

ScalarPatternsStorage::ScalarPatternsStorage(at::IntArrayRef levels, ScalarBound bound)
    : period(static_cast<int64_t>(levels.size()) * kernels::kScalarRepeat),
      most(*std::max_element(levels.begin(), levels.end()) - 1) {
  std::vector<float> centres, divisors;
  for (const int64_t count : levels) {
    const auto rule = scalar_rule(count, is_symmetric(bound));
    factor = static_cast<float>(rule.factor);
    centres.push_back(static_cast<float>(rule.centre));
    divisors.push_back(static_cast<float>(rule.divisor));
  }
  centre = repeated(centres);
  divisor = repeated(divisors);
  for (int64_t k = 0; k < most; ++k) {
    std::vector<float> row;
    for (const int64_t count : levels) {
      const auto& known = scalar_levels<float>(count, bound)->changes;
      row.push_back(k + 1 < count ? known[static_cast<size_t>(k)]
                                  : std::numeric_limits<float>::quiet_NaN());
    }
    const auto pattern = repeated(row);
    changes.insert(changes.end(), pattern.begin(), pattern.end());
  }
}

}  // namespace torchvq::detail
