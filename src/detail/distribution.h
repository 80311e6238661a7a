// The distribution functions of finite scalar perturbation, their quantiles and densities.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

enum class Distribution { kTanh, kSigmoid, kNormal, kLaplace, kCauchy };
enum class CodeForm { kAct, kUnit, kInverse };

/// Throws c10::ValueError for an unknown name.
Distribution parse_distribution(const char* op, std::string_view name);
CodeForm parse_code_form(const char* op, std::string_view name);

/// F(x).
template <typename T>
T cumulative(Distribution kind, T x) {
  switch (kind) {
    case Distribution::kTanh:
      return (std::tanh(x) + 1) / 2;
    case Distribution::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Distribution::kNormal:
      return std::erfc(-x * static_cast<T>(0.70710678118654752440L)) / 2;
    case Distribution::kLaplace:
      return x < 0 ? std::exp(x) / 2 : 1 - std::exp(-x) / 2;
    default:
      return std::atan(x) * static_cast<T>(0.31830988618379067154L) + static_cast<T>(0.5);
  }
}

/// F^-1(u) for u in (0, 1).
long double quantile(Distribution kind, long double u);

/// One feature: level i covers changes[i - 1] (inclusive) to changes[i].
template <typename T>
struct PerturbLevels {
  std::vector<T> changes;  ///< ascending, one fewer than levels
  std::vector<T> codes;    ///< codes of the centres of the bins
};

/// Cached for the settings that a process uses.
template <typename T>
std::shared_ptr<const PerturbLevels<T>> perturb_levels(int64_t levels, Distribution kind,
                                                       CodeForm form, double eps);

}  // namespace torchvq::detail
