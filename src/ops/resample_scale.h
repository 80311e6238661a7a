#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

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

/// Whether cells are averages of positions, or the transpose of that.
constexpr bool averages(Resampling direction) {
  return direction == Resampling::kAverage || direction == Resampling::kAverageBackward;
}

/// Called by every kernel.
Resampling check_resample_scale(const at::Tensor& input, at::IntArrayRef size,
                                c10::SymIntArrayRef full, std::string_view direction,
                                at::IntArrayRef kernel);

/// The kernel's size along each axis, which is 1 if there is none.
std::vector<int64_t> taps_of_axes(at::IntArrayRef size, at::IntArrayRef kernel);

/// resample_scale() of checked arguments on the CPU. With `map_of_rows` maps are (B, positions, D)
/// instead of (B, D, *full), with the same bits.
at::Tensor resample_on_cpu(const at::Tensor& input, at::IntArrayRef size, at::IntArrayRef full,
                           Resampling direction, at::IntArrayRef kernel, bool map_of_rows);

/// The number of cells of a grid. Throws c10::ValueError unless it has one to three axes.
int64_t check_grid(const char* op, at::IntArrayRef size);

}  // namespace torchvq::detail
