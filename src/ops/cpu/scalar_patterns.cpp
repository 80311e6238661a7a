#include "ops/cpu/scalar_patterns.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "detail/kept_values.h"

namespace torchvq::detail {
namespace {

constexpr int64_t kMostCompared = 65;

/// Repeats the parameters of the features (D) for kScalarRepeat rows.
std::vector<float> repeated(const std::vector<float>& values) {
  std::vector<float> pattern;
  for (int64_t i = 0; i < kernels::kScalarRepeat; ++i) {
    pattern.insert(pattern.end(), values.begin(), values.end());
  }
  return pattern;
}

}  // namespace

bool is_compared(at::IntArrayRef levels) {
  return std::all_of(levels.begin(), levels.end(),
                     [](int64_t count) { return count <= kMostCompared; });
}

ScalarPatternsStorage::ScalarPatternsStorage(at::IntArrayRef levels, ScalarBound bound)
    : period(static_cast<int64_t>(levels.size()) * kernels::kScalarRepeat),
      most(*std::max_element(levels.begin(), levels.end()) - 1),
      tanh(is_tanh(bound)),
      basis(scalar_basis(levels)) {
  std::vector<float> centres, divisors, gains, shifts;
  for (const int64_t count : levels) {
    const auto formula = scalar_formula(count, bound);
    gains.push_back(static_cast<float>(formula.gain));
    shifts.push_back(static_cast<float>(formula.shift));
    const auto rule = scalar_rule(count, is_symmetric(bound));
    factor = static_cast<float>(rule.factor);
    centres.push_back(static_cast<float>(rule.centre));
    divisors.push_back(static_cast<float>(rule.divisor));
  }
  centre = repeated(centres);
  divisor = repeated(divisors);
  gain = repeated(gains);
  shift = repeated(shifts);
  // If levels are found by bisection, only the gradient uses patterns.
  if (!is_compared(levels)) return;
  std::vector<std::vector<float>> known;
  for (const int64_t count : levels) known.push_back(scalar_levels<float>(count, bound)->changes);
  add_changes(known);
}

ScalarPatternsStorage::ScalarPatternsStorage(const std::vector<std::vector<float>>& of_features)
    : period(static_cast<int64_t>(of_features.size()) * kernels::kScalarRepeat),
      most(0),
      centre(static_cast<size_t>(period), 0.0F),
      divisor(static_cast<size_t>(period), 1.0F) {
  for (const auto& own : of_features) most = std::max(most, static_cast<int64_t>(own.size()));
  add_changes(of_features);
}

void ScalarPatternsStorage::add_changes(const std::vector<std::vector<float>>& of_features) {
  for (size_t k = 0; k < static_cast<size_t>(most); ++k) {
    std::vector<float> row;
    for (const auto& own : of_features) {
      row.push_back(k < own.size() ? own[k] : std::numeric_limits<float>::quiet_NaN());
    }
    const auto pattern = repeated(row);
    changes.insert(changes.end(), pattern.begin(), pattern.end());
  }
}

std::shared_ptr<const ScalarPatternsStorage> scalar_patterns(at::IntArrayRef levels,
                                                             ScalarBound bound) {
  using Key = std::pair<std::vector<int64_t>, ScalarBound>;
  static KeptValues<Key, ScalarPatternsStorage> known;
  return known.get({levels.vec(), bound}, [&] { return ScalarPatternsStorage(levels, bound); });
}

}  // namespace torchvq::detail
