// Any device: products with the weights of each axis, the reference for the CPU kernel.
#include "ops/resample_scale.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
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

/// The shares of cells in each position for every tap of a convolution: (positions, cells, taps). Tap t
/// reads what is t - taps / 2 positions further, and zeros beyond the edges.
at::Tensor shares_of_taps(int64_t cells, int64_t positions, int64_t taps,
                          const at::TensorOptions& options) {
  const auto own = shares(cells, positions, options).t();
  const int64_t edge = taps / 2;
  const auto padded = at::constant_pad_nd(own, {0, 0, edge, edge});
  std::vector<at::Tensor> shifted;
  for (int64_t tap = 0; tap < taps; ++tap) shifted.push_back(padded.slice(0, tap, tap + positions));
  return at::stack(shifted, -1);
}

/// The sum over taps of what each has at the positions it reads: (..., cells, taps) to
/// (..., positions). Additions are in a fixed order, as in interpolated().
at::Tensor sum_of_taps(const at::Tensor& last, int64_t positions) {
  const int64_t cells = last.size(-2), taps = last.size(-1);
  const auto [before, rest] = places(cells, positions, last.options());
  const auto position = at::arange(positions, last.options().dtype(at::kLong));
  const auto none = at::zeros({}, last.options());
  at::Tensor sum;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const auto read = position.add(tap - taps / 2);
    const auto inside = read.ge(0).logical_and(read.lt(positions));
    const auto known = read.clamp(0, positions - 1);
    const auto first = before.index_select(0, known).to(at::kLong);
    const auto share = rest.index_select(0, known);
    const auto own = last.select(-1, tap);
    const auto add = [&](const at::Tensor& cell, const at::Tensor& weight) {
      const auto value = at::where(inside, own.index_select(-1, cell).mul(weight), none);
      sum = sum.defined() ? sum.add(value) : value;
    };
    add(first, at::rsub(share, 1));
    add(first.add(1).clamp_max(cells - 1), share);
  }
  return sum;
}

/// The sum of a convolution over its interpolated taps, (B, D, *S), of tokens (B, L, taps * D).
at::Tensor convolved(const at::Tensor& tokens, at::IntArrayRef size, at::IntArrayRef positions,
                     at::IntArrayRef kernel) {
  const auto axes = static_cast<int64_t>(size.size());
  std::vector<int64_t> shape{tokens.size(0)};
  shape.insert(shape.end(), size.begin(), size.end());
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  shape.push_back(tokens.size(2) / c10::multiply_integers(kernel));
  auto map = tokens.to(at::kDouble).reshape(shape).movedim(-1, 1);
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    // The axis and its taps at the end; then the positions where the axis was.
    const auto last = map.movedim({axis + 2, axis + axes + 2}, {-2, -1});
    map = sum_of_taps(last, positions[axis]).movedim(-1, axis + 2);
  }
  return map;
}

/// Its transpose: (B, L, taps * D) of a map (B, D, *S).
at::Tensor convolved_backward(const at::Tensor& map, at::IntArrayRef size,
                              at::IntArrayRef positions, at::IntArrayRef kernel) {
  const auto axes = static_cast<int64_t>(size.size());
  auto taps = map.to(at::kDouble).movedim(1, -1);
  for (int64_t axis = 0; axis < axes; ++axis) {
    const auto weights = shares_of_taps(size[axis], positions[axis], kernel[axis], taps.options());
    const auto grid = taps.movedim(axis + 1, -1).matmul(weights.flatten(1));
    // Cells where the positions were; taps before the features.
    taps = grid.unflatten(-1, {size[axis], kernel[axis]})
               .movedim(-2, axis + 1)
               .movedim(-1, axes + 1 + axis);
  }
  return taps.flatten(axes + 1).flatten(1, axes);
}

at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size, c10::SymIntArrayRef full,
                          std::string_view direction, at::IntArrayRef kernel) {
  const auto known = detail::check_resample_scale(input, size, full, direction, kernel);
  const bool to_tokens = detail::to_tokens(known);
  const auto positions = C10_AS_INTARRAYREF_SLOW(full);
  const auto axes = static_cast<int64_t>(size.size());
  const auto target = to_tokens ? size : positions;
  const auto taps = c10::multiply_integers(kernel);
  const int64_t dim = to_tokens ? input.size(1) : input.size(2) / taps;
  std::vector<int64_t> shape{input.size(0), dim};
  shape.insert(shape.end(), target.begin(), target.end());
  if (std::find(positions.begin(), positions.end(), 0) != positions.end()) {
    if (!to_tokens) return input.new_zeros(shape);
    return input.new_zeros({input.size(0), c10::multiply_integers(size), dim * taps});
  }
  if (taps > 1) {
    const auto found = to_tokens ? convolved_backward(input, size, positions, kernel)
                                 : convolved(input, size, positions, kernel);
    return found.to(input.scalar_type()).contiguous();
  }
  auto from = to_tokens ? input : input.transpose(1, 2);
  std::vector<int64_t> grid{input.size(0), dim};
  grid.insert(grid.end(), size.begin(), size.end());
  auto map = to_tokens ? from.to(at::kDouble) : from.to(at::kDouble).reshape(grid);
  // A transpose takes the axes in the other order.
  for (int64_t step = 0; step < axes; ++step) {
    const auto axis = to_tokens ? step : axes - 1 - step;
    map = along_axis(map, axis + 2, size[axis], positions[axis], known);
  }
  map = map.to(input.scalar_type());
  return to_tokens ? map.flatten(2).transpose(1, 2).contiguous() : map.contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("resample_scale", resample_scale);
}

}  // namespace torchvq
