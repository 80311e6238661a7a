// The levels of finite scalar quantization: their boundaries and codes.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

enum class ScalarBound { kTanh, kClamp, kSymmetricTanh, kSymmetricClamp };

/// Throws c10::ValueError for an unknown name.
ScalarBound scalar_bound(const char* op, std::string_view name);

inline bool is_symmetric(ScalarBound bound) {
  return bound == ScalarBound::kSymmetricTanh || bound == ScalarBound::kSymmetricClamp;
}

inline bool is_tanh(ScalarBound bound) {
  return bound == ScalarBound::kTanh || bound == ScalarBound::kSymmetricTanh;
}

/// The constants in the formulas of scalar_quantize.h.
struct ScalarFormula {
  double gain;   ///< d code / d bounded
  double shift;  ///< s
};

ScalarFormula scalar_formula(int64_t levels, ScalarBound bound);

/// One feature. Level i covers changes[i - 1] (inclusive) to changes[i].
template <typename T>
struct ScalarLevels {
  std::vector<T> changes;  ///< ascending, one fewer than levels
  std::vector<T> codes;
};

/// Computed once per process for each number of levels and bound; T is float or double.
template <typename T>
std::shared_ptr<const ScalarLevels<T>> scalar_levels(int64_t levels, ScalarBound bound);

/// The rule for codes of levels. Numerators are integers, so one division rounds once, and a
/// float32 quotient is the float64 quotient rounded.
struct ScalarRule {
  double factor, centre, divisor;

  double code(int64_t level) const {
    return (static_cast<double>(level) * factor - centre) / divisor;
  }
};

ScalarRule scalar_rule(int64_t levels, bool symmetric);

/// Throws c10::ValueError for levels that scalar_quantize() does not support.
void check_scalar_levels(const char* op, at::IntArrayRef levels, int64_t fewest);

/// The place value of each feature in the index of a row.
std::vector<int64_t> scalar_basis(at::IntArrayRef levels);

}  // namespace torchvq::detail
