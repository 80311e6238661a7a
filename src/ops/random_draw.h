// Argument checks shared by the operators that draw numbers.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>

#include "detail/random_tensor.h"

namespace torchvq::detail {

/// Returns the dtype of the numbers, float32 by default.
inline at::ScalarType check_random_draw(const char* op, const at::Tensor& rng,
                                        c10::SymIntArrayRef size,
                                        std::optional<at::ScalarType> dtype) {
  check_rng(op, rng);
  for (const auto& extent : size) {
    TORCH_CHECK_VALUE(extent >= 0, op, ": expected size to be non-negative, but got ", size);
  }
  const auto result = dtype.value_or(at::kFloat);
  TORCH_CHECK_TYPE(result == at::kFloat || result == at::kDouble || result == at::kHalf ||
                       result == at::kBFloat16,
                   op, ": expected dtype to be float16, bfloat16, float32 or float64, but got ",
                   result);
  return result;
}

}  // namespace torchvq::detail
