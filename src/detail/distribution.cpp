#include "detail/distribution.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <tuple>

#include <c10/util/Exception.h>

#include "detail/kept_values.h"
#include "detail/round_up.h"

namespace torchvq::detail {
namespace {

/// Bisection, because the C library has no inverse of erf.
long double normal_quantile(long double u) {
  const long double tail = std::min(u, 1 - u);
  long double low = -40, high = 0;
  for (int step = 0; step < 72; ++step) {
    const long double middle = (low + high) / 2;
    (cumulative(Distribution::kNormal, middle) < tail ? low : high) = middle;
  }
  const long double found = (low + high) / 2;
  return u > 0.5L ? -found : found;
}

/// The code at cumulative probability u.
long double code_of(long double u, Distribution kind, CodeForm form, long double eps) {
  if (form == CodeForm::kAct) return u;
  if (form == CodeForm::kUnit) return std::sqrt(12.0L) * (u - 0.5L);
  return quantile(kind, std::clamp(u, eps, 1 - eps));
}

}  // namespace

Distribution parse_distribution(const char* op, std::string_view name) {
  if (name == "tanh") return Distribution::kTanh;
  if (name == "sigmoid") return Distribution::kSigmoid;
  if (name == "normal") return Distribution::kNormal;
  if (name == "laplace") return Distribution::kLaplace;
  TORCH_CHECK_VALUE(name == "cauchy", op,
                    ": expected cdf to be tanh, sigmoid, normal, laplace or cauchy, but got ",
                    name);
  return Distribution::kCauchy;
}

CodeForm parse_code_form(const char* op, std::string_view name) {
  if (name == "act") return CodeForm::kAct;
  if (name == "unit") return CodeForm::kUnit;
  TORCH_CHECK_VALUE(name == "inverse", op, ": expected form to be act, unit or inverse, but got ",
                    name);
  return CodeForm::kInverse;
}

long double quantile(Distribution kind, long double u) {
  switch (kind) {
    case Distribution::kTanh:
      return std::log(u / (1 - u)) / 2;
    case Distribution::kSigmoid:
      return std::log(u / (1 - u));
    case Distribution::kNormal:
      return normal_quantile(u);
    case Distribution::kLaplace:
      return u < 0.5L ? std::log(2 * u) : -std::log(2 * (1 - u));
    default:
      return std::tan(std::numbers::pi_v<long double> * (u - 0.5L));
  }
}

namespace {

template <typename T>
PerturbLevels<T> made_levels(int64_t levels, Distribution kind, CodeForm form, double eps) {
  PerturbLevels<T> made;
  const auto count = static_cast<long double>(levels);
  for (int64_t i = 0; i < levels; ++i) {
    const auto centre = (static_cast<long double>(i) + 0.5L) / count;
    made.codes.push_back(static_cast<T>(code_of(centre, kind, form, eps)));
    if (i + 1 == levels) break;
    // Sets the middle to exactly 0, which a quotient of long doubles may miss.
    const auto edge = static_cast<long double>(i + 1) / count;
    made.changes.push_back(2 * (i + 1) == levels ? T(0) : round_up<T>(quantile(kind, edge)));
  }
  return made;
}

}  // namespace

template <typename T>
std::shared_ptr<const PerturbLevels<T>> perturb_levels(int64_t levels, Distribution kind,
                                                       CodeForm form, double eps) {
  using Key = std::tuple<int64_t, Distribution, CodeForm, double>;
  static KeptValues<Key, PerturbLevels<T>> known;
  return known.get({levels, kind, form, form == CodeForm::kInverse ? eps : 0.0},
                   [&] { return made_levels<T>(levels, kind, form, eps); });
}

template std::shared_ptr<const PerturbLevels<float>> perturb_levels<float>(int64_t, Distribution,
                                                                           CodeForm, double);
template std::shared_ptr<const PerturbLevels<double>> perturb_levels<double>(int64_t, Distribution,
                                                                             CodeForm, double);

}  // namespace torchvq::detail
