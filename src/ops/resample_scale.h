#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace torchvq::detail {

/// The linear maps between positions and cells, and their transposes.
enum class Resampling { kAverage, kAverageBackward, kInterpolate, kInterpolateBackward };

/// Throws c10::ValueError for an unknown name.
Resampling resampling_named(std::string_view direction);

/// The direction of the gradient: each direction is the transpose of its partner.
std::string_view transposed(std::string_view direction);

/// From a map (B, D, *S) to tokens (B, L, D); otherwise the other way.
constexpr bool to_tokens(Resampling direction) {
  return direction == Resampling::kAverage || direction == Resampling::kInterpolateBackward;
}

/// Called by every kernel.
Resampling check_resample_scale(const at::Tensor& input, at::IntArrayRef size,
                                c10::SymIntArrayRef full, std::string_view direction);

/// The number of cells of a grid. Throws c10::ValueError unless it has one to three axes.
int64_t check_grid(const char* op, at::IntArrayRef size);

}  // namespace torchvq::detail
