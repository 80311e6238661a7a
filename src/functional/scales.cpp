#include <torchvq/functional/scales.h>

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/where.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <torchvq/ops/random_uniform.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

void check_scale_tensor(const char* op, const char* name, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op, ": expected ", name,
                   " to be float32 or float64, but got ", dtype);
}

int64_t check_grid(const char* op, at::IntArrayRef size) {
  const bool usable = !size.empty() && size.size() <= 3 &&
                      std::all_of(size.begin(), size.end(), [](int64_t n) { return n >= 1; });
  TORCH_CHECK_VALUE(usable, op, ": expected size to be one to three numbers, each at least 1, ",
                    "but got ", size);
  int64_t cells = 1;
  for (const auto n : size) cells *= n;
  return cells;
}

/// Weights of linear interpolation along one axis: (full, cells).
at::Tensor interpolation(int64_t cells, const c10::SymInt& full, const at::TensorOptions& options) {
  const auto wide = options.dtype(at::kDouble).requires_grad(false);
  const auto steps = at::arange(c10::Scalar(full), wide).add(0.5);
  // The centre of each position, in units of cells from the centre of the first cell.
  const auto places = steps.mul(cells).div(c10::Scalar(full)).sub(0.5).clamp(0, cells - 1);
  const auto apart = places.unsqueeze(1).sub(at::arange(cells, wide)).abs();
  return apart.neg().add(1).clamp_min(0).to(options.dtype());
}

/// Multiplies a map by weights (cells, positions) along one axis. torch's own pooling and
/// interpolation are not used: only matrix products round the same on all compilers and devices,
/// allow symbolic sizes, and sum gradients in a fixed order.
at::Tensor along_axis(const at::Tensor& map, int64_t axis, const at::Tensor& weights) {
  return map.movedim(axis, -1).contiguous().matmul(weights.t()).movedim(-1, axis);
}

at::Tensor interpolate(const at::Tensor& grid, at::IntArrayRef size, c10::SymIntArrayRef full) {
  auto map = grid;
  for (auto axis = static_cast<int64_t>(size.size()) - 1; axis >= 0; --axis) {
    if (size[axis] == 1) {
      auto shape = map.sym_sizes().vec();
      shape[axis + 2] = full[axis];
      map = map.expand_symint(shape);
      continue;
    }
    map = along_axis(map, axis + 2, interpolation(size[axis], full[axis], grid.options()));
  }
  return map.contiguous();
}

/// The positions that a cell averages along one axis: from the position in which the cell begins to
/// the one in which it ends. (cells, positions), 1 or 0.
at::Tensor cell_positions(int64_t cells, const c10::SymInt& full,
                          const at::TensorOptions& options) {
  const auto whole = options.dtype(at::kLong).requires_grad(false);
  const auto cell = at::arange(cells, whole).unsqueeze(1);
  const auto position = at::arange(c10::Scalar(full), whole);
  const auto count = position.slice(0, -1).add(1);  // full, in a form that compilers can multiply
  const auto begins = position.add(1).mul(cells).gt(cell.mul(count));
  const auto ends = position.mul(cells).lt(cell.add(1).mul(count));
  return begins.logical_and(ends).to(options.dtype());
}

/// Averages over the cells of a grid; zeros for a map without positions.
at::Tensor average_cells(const at::Tensor& map, at::IntArrayRef size) {
  const auto positions = map.sym_sizes().slice(2);
  if (std::any_of(positions.begin(), positions.end(), [](const auto& n) { return n == 0; })) {
    auto shape = map.sym_sizes().vec();
    std::copy(size.begin(), size.end(), shape.begin() + 2);
    return map.new_zeros_symint(shape);
  }
  // In float64, so that the order of additions does not show in the result: compilers use a
  // different order for products with a single cell.
  auto grid = map.to(at::kDouble);
  for (auto axis = static_cast<int64_t>(size.size()) - 1; axis >= 0; --axis) {
    const auto own = cell_positions(size[axis], map.sym_size(axis + 2), grid.options());
    auto counts = own.sum(1);
    for (auto after = axis + 3; after < map.dim(); ++after) counts = counts.unsqueeze(-1);
    grid = along_axis(grid, axis + 2, own).div(counts);
  }
  return grid.to(map.scalar_type()).contiguous();
}

/// The fraction of each cell that is not padding: (B, *S) to (B, 1, *size).
at::Tensor real_fraction(const at::Tensor& mask, at::IntArrayRef size, at::ScalarType dtype) {
  return average_cells(mask.unsqueeze(1).to(dtype), size);
}

at::Tensor convolve(const at::Tensor& map, const at::Tensor& weight, const at::Tensor& bias) {
  std::vector<int64_t> padding;
  for (const auto n : weight.sizes().slice(2)) padding.push_back(n / 2);
  const std::vector<int64_t> one(padding.size(), 1);
  if (padding.size() == 1) return at::conv1d(map, weight, bias, one, padding);
  return padding.size() == 2 ? at::conv2d(map, weight, bias, one, padding)
                             : at::conv3d(map, weight, bias, one, padding);
}

}  // namespace

at::Tensor pool_scale(const at::Tensor& map, at::IntArrayRef size,
                      const std::optional<at::Tensor>& mask) {
  constexpr auto op = "pool_scale";
  // C++ callers bypass the dispatcher, in which operators disable autocast.
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  check_scale_tensor(op, "map", map);
  check_grid(op, size);
  TORCH_CHECK_VALUE(map.dim() == static_cast<int64_t>(size.size()) + 2, op,
                    ": expected map to have ", size.size(), " axes of positions, but got shape ",
                    map.sym_sizes());
  if (!mask) return average_cells(map, size).flatten(2).transpose(1, 2).contiguous();
  TORCH_CHECK_TYPE(mask->scalar_type() == at::kBool, op, ": expected mask to be bool, but got ",
                   mask->scalar_type());
  TORCH_CHECK_VALUE(mask->dim() == map.dim() - 1, op, ": expected mask to have shape (B, *S), ",
                    "but got ", mask->sym_sizes());
  const auto fraction = real_fraction(*mask, size, map.scalar_type());
  // Padding may have become anything by now, including NaN.
  const auto filled = at::where(mask->unsqueeze(1), map, 0);
  const auto mean = average_cells(filled, size).div(at::where(fraction > 0, fraction, 1));
  return mean.flatten(2).transpose(1, 2).contiguous();
}

at::Tensor pool_scale_mask(const at::Tensor& mask, at::IntArrayRef size) {
  constexpr auto op = "pool_scale_mask";
  check_grid(op, size);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": expected mask to be bool, but got ",
                   mask.scalar_type());
  TORCH_CHECK_VALUE(mask.dim() == static_cast<int64_t>(size.size()) + 1, op,
                    ": expected mask to have ", size.size(), " axes of positions, but got shape ",
                    mask.sym_sizes());
  return real_fraction(mask, size, at::kFloat).gt(0).flatten(1);
}

at::Tensor spread_scale(const at::Tensor& tokens, at::IntArrayRef size, c10::SymIntArrayRef full,
                        const at::Tensor& weight, const at::Tensor& bias, double ratio) {
  constexpr auto op = "spread_scale";
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  check_scale_tensor(op, "tokens", tokens);
  const auto cells = check_grid(op, size);
  TORCH_CHECK_VALUE(tokens.dim() == 3 && tokens.sym_size(1) == cells, op,
                    ": expected tokens to have shape (B, ", cells, ", D), but got ",
                    tokens.sym_sizes());
  TORCH_CHECK_VALUE(full.size() == size.size(), op, ": expected full to have ", size.size(),
                    " numbers, but got ", full);
  const auto axes = static_cast<int64_t>(size.size());
  TORCH_CHECK_VALUE(weight.dim() == axes + 2 && bias.dim() == 1, op,
                    ": expected weight to have shape (D, D, *kernel) with ", axes,
                    " axes of a kernel, but got ", weight.sym_sizes());
  std::vector<c10::SymInt> shape{tokens.sym_size(0), tokens.sym_size(2)};
  shape.insert(shape.end(), full.begin(), full.end());
  const auto dtype = tokens.scalar_type();
  // A fixed memory format, regardless of the module's: convolutions round
  // differently in another one.
  const auto wide = weight.to(dtype).contiguous(), offset = bias.to(dtype);
  if (std::any_of(shape.begin(), shape.end(), [](const auto& n) { return n == 0; })) {
    // Distributed wrappers wait for a gradient of the weights even without tokens.
    const auto nothing = wide.sum().add(offset.sum()).mul(0);
    return tokens.new_zeros_symint(shape).add(nothing);
  }
  std::vector<c10::SymInt> grid{tokens.sym_size(0), tokens.sym_size(2)};
  grid.insert(grid.end(), size.begin(), size.end());
  const auto map = interpolate(tokens.transpose(1, 2).contiguous().view_symint(grid), size, full);
  return at::lerp(map, convolve(map, wide, offset), ratio);
}

at::Tensor drawn_scales(const at::Tensor& rng, int64_t scales, double dropout, int64_t min_scales) {
  const auto uniform = ops::random_uniform(rng, RandomPurpose::kQuantizeDropout, {2}, at::kDouble);
  const auto fewer = std::max<int64_t>(scales - min_scales, 0);
  const auto kept = uniform[1].mul(static_cast<double>(fewer)).to(at::kLong).add(min_scales);
  const auto drops = fewer > 0 ? uniform[0].lt(dropout) : uniform[0].lt(0);
  return at::where(drops, kept, scales);
}

std::vector<int64_t> convolution_of_scales(int64_t scales, int64_t convolutions) {
  std::vector<int64_t> found;
  const bool one_each = convolutions < 1 || convolutions >= scales;
  for (int64_t n = 0; n < scales; ++n) {
    const auto place = scales > 1 ? static_cast<double>(n) / static_cast<double>(scales - 1) : 0;
    found.push_back(one_each ? n : std::lrint(place * static_cast<double>(convolutions - 1)));
  }
  return found;
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("pool_scale(Tensor map, int[] size, *, Tensor? mask=None) -> Tensor",
        TORCH_FN(torchvq::functional::pool_scale));
  m.def("pool_scale_mask(Tensor mask, int[] size) -> Tensor",
        TORCH_FN(torchvq::functional::pool_scale_mask));
  m.def(
      "spread_scale(Tensor tokens, int[] size, SymInt[] full, Tensor weight, Tensor bias, float "
      "ratio) -> Tensor",
      TORCH_FN(torchvq::functional::spread_scale));
  m.def("drawn_scales(Tensor rng, int scales, float dropout, int min_scales) -> Tensor",
        TORCH_FN(torchvq::functional::drawn_scales));
}
