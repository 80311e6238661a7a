// What every kernel of random_numbers needs.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Returns the dtype of the result, float32 by default.
at::ScalarType check_random_numbers(const at::Tensor& rng, c10::SymIntArrayRef size,
                                    std::optional<at::ScalarType> dtype);

/// Number of random bits in a uniform number of a dtype: the length of its significand.
int uniform_precision(at::ScalarType dtype);

}  // namespace torchvq::detail
