#include "ops/resample_scale.h"

#include <algorithm>
#include <array>
#include <utility>

#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <torchvq/ops/resample_scale.h>

#include "detail/checks.h"
#include "detail/op_handle.h"

namespace torchvq {

namespace {

using detail::Resampling;

constexpr std::array<std::pair<std::string_view, Resampling>, 4> kDirections{{
    {"average", Resampling::kAverage},
    {"average_backward", Resampling::kAverageBackward},
    {"interpolate", Resampling::kInterpolate},
    {"interpolate_backward", Resampling::kInterpolateBackward},
}};

}  // namespace

namespace detail {

Resampling resampling_named(std::string_view direction) {
  for (const auto& [name, value] : kDirections) {
    if (name == direction) return value;
  }
  TORCH_CHECK_VALUE(false, "resample_scale: expected direction to be average, average_backward, ",
                    "interpolate or interpolate_backward, but got ", direction);
}

std::string_view transposed(std::string_view direction) {
  const auto partner = static_cast<size_t>(resampling_named(direction)) ^ 1U;
  return kDirections.at(partner).first;
}

int64_t check_grid(const char* op, at::IntArrayRef size) {
  const bool usable = !size.empty() && size.size() <= 3 &&
                      std::all_of(size.begin(), size.end(), [](int64_t n) { return n >= 1; });
  TORCH_CHECK_VALUE(usable, op, ": expected size to be one to three numbers, each at least 1, ",
                    "but got ", size);
  int64_t cells = 1;
  for (const auto n : size) {
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(cells, n, &cells), op,
                      ": expected size to have less than 2^63 positions, but got ", size);
  }
  return cells;
}

std::vector<int64_t> taps_of_axes(at::IntArrayRef size, at::IntArrayRef kernel) {
  return kernel.empty() ? std::vector<int64_t>(size.size(), 1) : kernel.vec();
}

namespace {

void check_kernel(const char* op, at::IntArrayRef size, Resampling direction,
                  at::IntArrayRef kernel) {
  if (kernel.empty()) return;
  TORCH_CHECK_VALUE(!averages(direction), op,
                    ": expected kernel to be empty for averages, but got ", kernel);
  const bool usable =
      kernel.size() == size.size() &&
      std::all_of(kernel.begin(), kernel.end(), [](int64_t n) { return n >= 1 && n % 2 == 1; });
  TORCH_CHECK_VALUE(usable, op, ": expected kernel to be ", size.size(),
                    " odd numbers (those of size), but got ", kernel);
}

}  // namespace

Resampling check_resample_scale(const at::Tensor& input, at::IntArrayRef size,
                                c10::SymIntArrayRef full, std::string_view direction,
                                at::IntArrayRef kernel) {
  constexpr auto op = "resample_scale";
  const auto known = resampling_named(direction);
  const auto dtype = input.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected input to be float32 or float64, but got ", dtype);
  const auto cells = check_grid(op, size);
  TORCH_CHECK_VALUE(full.size() == size.size(), op, ": expected full to have ", size.size(),
                    " numbers, but got ", full);
  check_kernel(op, size, known, kernel);
  for (const auto& positions : full) {
    TORCH_CHECK_VALUE(positions >= 0, op, ": expected full to be at least 0, but got ", full);
  }
  if (!to_tokens(known)) {
    TORCH_CHECK_VALUE(input.dim() == 3 && input.sym_size(1) == cells, op,
                      ": expected input to have shape (B, ", cells, ", D), but got ",
                      input.sym_sizes());
    const auto taps = c10::multiply_integers(kernel);
    TORCH_CHECK_VALUE(input.sym_size(2) % taps == 0, op, ": expected input to have ", taps,
                      " (the kernel) times as many features as the map, but got shape ",
                      input.sym_sizes());
    return known;
  }
  TORCH_CHECK_VALUE(input.dim() == static_cast<int64_t>(size.size()) + 2, op,
                    ": expected input to have ", size.size(), " axes of positions, but got shape ",
                    input.sym_sizes());
  for (size_t axis = 0; axis < full.size(); ++axis) {
    check_size(op, "input", input, static_cast<int64_t>(axis) + 2, full[axis], "positions of full");
  }
  return known;
}

}  // namespace detail

at::Tensor ops::resample_scale(const at::Tensor& input, at::IntArrayRef size,
                               c10::SymIntArrayRef full, std::string_view direction,
                               at::IntArrayRef kernel) {
  using Signature = at::Tensor(const at::Tensor&, at::IntArrayRef, c10::SymIntArrayRef,
                               std::string_view, at::IntArrayRef);
  static auto op = detail::op_handle<Signature>("torchvq::resample_scale");
  return op.call(input, size, full, direction, kernel);
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "resample_scale(Tensor input, int[] size, SymInt[] full, str direction, int[] kernel=[]) "
      "-> Tensor");
}
