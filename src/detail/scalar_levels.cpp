#include "detail/scalar_levels.h"

#include <cmath>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

#include "detail/kept_values.h"
#include "detail/round_up.h"

namespace torchvq::detail {
namespace {

constexpr int64_t kMostLevels = 65536;
constexpr int64_t kMostCodes = int64_t{1} << 62;
// The paper stretches the bound slightly, so that the outermost levels can be reached.
constexpr long double kStretch = 1.001L;

/// The real number at which level i becomes level i + 1. In long double, so that rounding to double
/// and float gives the same result with every math library.
long double change_after(int64_t i, int64_t levels, ScalarBound bound) {
  if (is_symmetric(bound)) {
    const auto bounded = static_cast<long double>(2 * i + 2 - levels) / (levels - 1);
    return bound == ScalarBound::kSymmetricTanh ? std::atanh(bounded) : bounded;
  }
  const long double half = kStretch * (levels - 1) / 2, offset = levels % 2 == 0 ? 0.5L : 0.0L;
  const long double bounded = (i + 0.5L - levels / 2 + offset) / half, shift = offset / half;
  return bound == ScalarBound::kTanh ? std::atanh(bounded) - std::atanh(shift) : bounded - shift;
}

}  // namespace

ScalarBound scalar_bound(const char* op, std::string_view name) {
  if (name == "tanh") return ScalarBound::kTanh;
  if (name == "clamp") return ScalarBound::kClamp;
  if (name == "symmetric_tanh") return ScalarBound::kSymmetricTanh;
  TORCH_CHECK_VALUE(
      name == "symmetric_clamp", op,
      ": expected bound to be tanh, clamp, symmetric_tanh or symmetric_clamp, but got ", name);
  return ScalarBound::kSymmetricClamp;
}

ScalarFormula scalar_formula(int64_t levels, ScalarBound bound) {
  if (is_symmetric(bound)) return {1, 0};
  const long double half = kStretch * (levels - 1) / 2;
  const long double ratio = (levels % 2 == 0 ? 0.5L : 0.0L) / half;
  const auto shift = bound == ScalarBound::kTanh ? std::atanh(ratio) : ratio;
  return {static_cast<double>(half / (levels / 2)), static_cast<double>(shift)};
}

ScalarRule scalar_rule(int64_t levels, bool symmetric) {
  const auto half = static_cast<double>(levels / 2), whole = static_cast<double>(levels - 1);
  return symmetric ? ScalarRule{2, whole, whole} : ScalarRule{1, half, half};
}

namespace {

template <typename T>
ScalarLevels<T> made_levels(int64_t levels, ScalarBound bound) {
  ScalarLevels<T> made;
  const auto rule = scalar_rule(levels, is_symmetric(bound));
  for (int64_t i = 0; i < levels; ++i) {
    made.codes.push_back(static_cast<T>(rule.code(i)));
    if (i + 1 < levels) made.changes.push_back(round_up<T>(change_after(i, levels, bound)));
  }
  return made;
}

}  // namespace

template <typename T>
std::shared_ptr<const ScalarLevels<T>> scalar_levels(int64_t levels, ScalarBound bound) {
  static KeptValues<std::pair<int64_t, ScalarBound>, ScalarLevels<T>> known;
  return known.get({levels, bound}, [&] { return made_levels<T>(levels, bound); });
}

template std::shared_ptr<const ScalarLevels<float>> scalar_levels<float>(int64_t, ScalarBound);
template std::shared_ptr<const ScalarLevels<double>> scalar_levels<double>(int64_t, ScalarBound);

void check_scalar_levels(const char* op, at::IntArrayRef levels, int64_t fewest) {
  TORCH_CHECK_VALUE(!levels.empty(), op, ": expected at least one number of levels, but got none");
  int64_t product = 1;
  for (const int64_t count : levels) {
    TORCH_CHECK_VALUE(count >= fewest && count <= kMostLevels, op, ": expected levels to be in [",
                      fewest, ", ", kMostLevels, "], but got ", levels);
    TORCH_CHECK_VALUE(product <= kMostCodes / count, op,
                      ": expected the product of levels to be at most 2^62, but got ", levels);
    product *= count;
  }
}

std::vector<int64_t> scalar_basis(at::IntArrayRef levels) {
  std::vector<int64_t> basis;
  int64_t product = 1;
  for (const int64_t count : levels) {
    basis.push_back(product);
    product *= count;
  }
  return basis;
}

}  // namespace torchvq::detail
