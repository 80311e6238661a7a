#include <torchvq/functional/scales.h>

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/resample_scale.h>

#include "detail/checks.h"
#include "detail/without_autocast.h"
#include "ops/resample_scale.h"

namespace torchvq::functional {
namespace {

void check_scale_tensor(const char* op, const char* name, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op, ": expected ", name,
                   " to be float32 or float64, but got ", dtype);
}

/// Averages over the cells of a grid: (B, D, *S) to (B, L, D).
at::Tensor average_cells(const at::Tensor& map, at::IntArrayRef size) {
  return ops::resample_scale(map, size, map.sym_sizes().slice(2), "average");
}

/// The fraction of each cell that is not padding: (B, *S) to (B, L, 1).
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
  const detail::WithoutAutocast without_autocast;
  check_scale_tensor(op, "map", map);
  detail::check_grid(op, size);
  TORCH_CHECK_VALUE(map.dim() == static_cast<int64_t>(size.size()) + 2, op,
                    ": expected map to have ", size.size(), " axes of positions, but got shape ",
                    map.sym_sizes());
  if (!mask) return average_cells(map, size);
  TORCH_CHECK_TYPE(mask->scalar_type() == at::kBool, op, ": expected mask to be bool, but got ",
                   mask->scalar_type());
  TORCH_CHECK_VALUE(mask->dim() == map.dim() - 1, op, ": expected mask to have shape (B, *S), ",
                    "but got ", mask->sym_sizes());
  const auto fraction = real_fraction(*mask, size, map.scalar_type());
  // Padding may have become anything by now, including NaN.
  const auto filled = at::where(mask->unsqueeze(1), map, 0);
  return average_cells(filled, size).div(at::where(fraction > 0, fraction, 1));
}

at::Tensor pool_scale_mask(const at::Tensor& mask, at::IntArrayRef size) {
  constexpr auto op = "pool_scale_mask";
  detail::check_grid(op, size);
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
  const detail::WithoutAutocast without_autocast;
  check_scale_tensor(op, "tokens", tokens);
  const auto cells = detail::check_grid(op, size);
  TORCH_CHECK_VALUE(tokens.dim() == 3 && tokens.sym_size(1) == cells, op,
                    ": expected tokens to have shape (B, ", cells, ", D), but got ",
                    tokens.sym_sizes());
  TORCH_CHECK_VALUE(full.size() == size.size(), op, ": expected full to have ", size.size(),
                    " numbers, but got ", full);
  const auto axes = static_cast<int64_t>(size.size());
  const auto features = tokens.sym_size(2);
  TORCH_CHECK_VALUE(
      weight.dim() == axes + 2 && weight.sym_size(0) == features && weight.sym_size(1) == features,
      op, ": expected weight to have shape (", features, ", ", features, ", *kernel) with ", axes,
      " axes of a kernel, but got ", weight.sym_sizes());
  for (const auto& side : weight.sizes().slice(2))
    TORCH_CHECK_VALUE(side % 2 == 1, op, ": expected the kernel to have odd sizes, but got ",
                      weight.sizes());
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.sym_size(0) == features, op,
                    ": expected bias to have shape (", features, ",), but got ", bias.sym_sizes());
  TORCH_CHECK_VALUE(std::isfinite(ratio), op, ": expected ratio to be finite, but got ", ratio);
  std::vector<c10::SymInt> shape{tokens.sym_size(0), tokens.sym_size(2)};
  shape.insert(shape.end(), full.begin(), full.end());
  const auto dtype = tokens.scalar_type();
  // A fixed memory format, regardless of the module's: convolutions round
  // differently in another one.
  const auto wide = weight.to(dtype).contiguous(), offset = bias.to(dtype);
  if (std::any_of(shape.begin(), shape.end(), [](const auto& n) { return n == 0; })) {
    // Distributed wrappers wait for a gradient of the weights even without tokens, and of those of
    // the encoder, which the tokens lead to.
    const auto nothing = wide.sum().add(offset.sum()).add(tokens.sum()).mul(0);
    return tokens.new_zeros_symint(shape).add(nothing);
  }
  const auto map = ops::resample_scale(tokens, size, full, "interpolate");
  return at::lerp(map, convolve(map, wide, offset), ratio);
}

at::Tensor drawn_scales(const at::Tensor& rng, int64_t scales, double dropout, int64_t min_scales) {
  const auto uniform = ops::random_numbers(rng, RandomPurpose::kQuantizeDropout,
                                           Distribution::kUniform, {2}, at::kDouble);
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
