// Any device: products with the weights of each axis, the reference for the CPU kernel.
#include "ops/resample_scale.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

using detail::Resampling;

/// 1 where a cell covers a position, otherwise 0: (cells, positions).
at::Tensor coverage(int64_t cells, int64_t positions, const at::TensorOptions& options) {
  const auto cell = at::arange(cells, options.dtype(at::kLong)).unsqueeze(1);
  const auto position = at::arange(positions, options.dtype(at::kLong));
  const auto begins = position.add(1).mul(cells).gt(cell.mul(positions));
  const auto ends = position.mul(cells).lt(cell.add(1).mul(positions));
  return begins.logical_and(ends).to(at::kDouble);
}

/// The cell before each position, and how far the position is from it: (positions,).
std::pair<at::Tensor, at::Tensor> places(int64_t cells, int64_t positions,
                                         const at::TensorOptions& options) {
  // Integers until the division, whose divisor is a tensor: of a number, CUDA takes the reciprocal.
  const auto numerator = at::arange(positions, options).mul(2 * cells).add(cells - positions);
  const auto quotient = numerator.div(at::full({}, 2 * positions, options));
  const auto place = quotient.clamp(0, static_cast<double>(cells - 1));
  auto before = place.floor();
  auto rest = place.sub(before);
  return {std::move(before), std::move(rest)};
}

/// A product with `shares`, in which the order of the two additions is fixed: libraries of linear
/// algebra have others, and exact halves between two floats are common.
at::Tensor interpolated(const at::Tensor& last, int64_t cells, int64_t positions) {
  const auto [before, rest] = places(cells, positions, last.options());
  const auto first = before.to(at::kLong), second = first.add(1).clamp_max(cells - 1);
  return last.index_select(-1, first)
      .mul(at::rsub(rest, 1))
      .add(last.index_select(-1, second).mul(rest));
}

/// The shares of cells in each position: (cells, positions).
at::Tensor shares(int64_t cells, int64_t positions, const at::TensorOptions& options) {
  const auto [before, rest] = places(cells, positions, options);
  const auto cell = at::arange(cells, options).unsqueeze(1);
  const auto none = at::zeros({}, options);
  return at::where(cell.eq(before), at::rsub(rest, 1),
                   at::where(cell.eq(before.add(1)), rest, none));
}

/// A map (B, D, *S) in float64, resampled along one axis of positions.
at::Tensor along_axis(const at::Tensor& map, int64_t axis, int64_t cells, int64_t positions,
                      Resampling direction) {
  const auto last = map.movedim(axis, -1).contiguous();
  at::Tensor found;
  if (direction == Resampling::kInterpolate) {
    found = interpolated(last, cells, positions);
  } else if (direction == Resampling::kInterpolateBackward) {
    found = last.matmul(shares(cells, positions, map.options()).t());
  } else {
    const auto weights = coverage(cells, positions, map.options());
    const auto counts = weights.sum(1);
    found = direction == Resampling::kAverage ? last.matmul(weights.t()).div(counts)
                                              : last.div(counts).matmul(weights);
  }
  return found.movedim(-1, axis);
}

at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size, c10::SymIntArrayRef full,
                          std::string_view direction) {
  const auto known = detail::check_resample_scale(input, size, full, direction);
  const bool to_tokens = detail::to_tokens(known);
  const auto positions = C10_AS_INTARRAYREF_SLOW(full);
  const auto axes = static_cast<int64_t>(size.size());
  const auto target = to_tokens ? size : positions;
  const int64_t dim = input.size(to_tokens ? 1 : 2);
  std::vector<int64_t> shape{input.size(0), dim};
  shape.insert(shape.end(), target.begin(), target.end());
  at::Tensor map;
  if (std::find(positions.begin(), positions.end(), 0) != positions.end()) {
    map = input.new_zeros(shape);
  } else {
    auto from = to_tokens ? input : input.transpose(1, 2);
    std::vector<int64_t> grid{input.size(0), dim};
    grid.insert(grid.end(), size.begin(), size.end());
    map = to_tokens ? from.to(at::kDouble) : from.to(at::kDouble).reshape(grid);
    // A transpose takes the axes in the other order.
    const bool backward =
        known == Resampling::kAverageBackward || known == Resampling::kInterpolateBackward;
    for (int64_t step = 0; step < axes; ++step) {
      const auto axis = backward ? step : axes - 1 - step;
      map = along_axis(map, axis + 2, size[axis], positions[axis], known);
    }
    map = map.to(input.scalar_type());
  }
  return to_tokens ? map.flatten(2).transpose(1, 2).contiguous() : map.contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("resample_scale", resample_scale);
}

}  // namespace torchvq
