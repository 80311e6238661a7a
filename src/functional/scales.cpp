#include <torchvq/functional/scales.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/resample_scale.h>
#include <torchvq/ops/row_products.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "detail/transposed.h"
#include "detail/without_autocast.h"
#include "functional/spread_scale.h"
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

/// (D, D) in the middle of taps: (D, taps, D); of a vector (D,) likewise.
at::Tensor in_middle_tap(const at::Tensor& values, int64_t taps) {
  return at::constant_pad_nd(values.unsqueeze(-2), {0, 0, taps / 2, taps / 2});
}

int64_t taps_of(at::IntArrayRef weight_sizes) {
  return c10::multiply_integers(weight_sizes.slice(2));
}

}  // namespace

void check_convolution(const char* op, const at::Tensor& weight, const at::Tensor& bias,
                       const c10::SymInt& features, size_t axes, double ratio) {
  TORCH_CHECK_VALUE(weight.dim() == static_cast<int64_t>(axes) + 2 &&
                        weight.sym_size(0) == features && weight.sym_size(1) == features,
                    op, ": expected weight to have shape (", features, ", ", features,
                    ", *kernel) with ", axes, " axes of a kernel, but got ", weight.sym_sizes());
  for (const auto& side : weight.sizes().slice(2)) {
    TORCH_CHECK_VALUE(side % 2 == 1, op, ": expected the kernel to have odd sizes, but got ",
                      weight.sizes());
  }
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.sym_size(0) == features, op,
                    ": expected bias to have shape (", features, ",), but got ", bias.sym_sizes());
  TORCH_CHECK_VALUE(std::isfinite(ratio), op, ": expected ratio to be finite, but got ", ratio);
}

// The convolution as a product: cells are fewer than positions, and torch's convolution takes several
// times as long for the few features of a quantizer.

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where memory can be written and no graph is recorded.
SpreadProduct plain_spread_product(const at::Tensor& weight, const at::Tensor& bias, double ratio) {
  const int64_t dim = weight.size(0), taps = taps_of(weight.sizes()), middle = taps / 2 * dim;
  // (D, D * taps) to (D, taps, D): inputs and taps before outputs.
  const auto turned = detail::transposed(weight.reshape({1, dim, -1}));
  auto matrix = turned.contiguous().mul(ratio).view({dim, taps * dim});
  matrix.as_strided({dim}, {taps * dim + 1}, middle).add_(1 - ratio);
  auto offset = at::zeros({taps * dim}, matrix.options());
  offset.slice(0, middle, middle + dim).copy_(bias.mul(ratio));
  return {std::move(matrix), std::move(offset)};
}

/// The same as one node of the graph.
struct SpreadProductNode : torch::autograd::Function<SpreadProductNode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& weight,
                               const at::Tensor& bias, double ratio) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["sizes"] = weight.sizes();
    ctx->saved_data["ratio"] = ratio;
    ctx->set_materialize_grads(false);
    auto product = plain_spread_product(weight, bias, ratio);
    return {std::move(product.matrix), std::move(product.offset)};
  }

  /// A linear map, so its gradient is the transpose, whatever the derivative.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto own = spread_product_backward({grads[0], grads[1]}, ctx->saved_data["sizes"].toIntVector(),
                                       ctx->saved_data["ratio"].toDouble());
    return {std::move(own.matrix), std::move(own.offset), {}};
  }
};

}  // namespace

SpreadProduct spread_product(const at::Tensor& weight, const at::Tensor& bias, double ratio) {
  if (detail::is_readable(weight) && detail::is_readable(bias)) {
    if (!detail::needs_gradient(weight) && !detail::needs_gradient(bias)) {
      return plain_spread_product(weight, bias, ratio);
    }
    auto found = SpreadProductNode::apply(weight, bias, ratio);
    return {std::move(found[0]), std::move(found[1])};
  }
  const auto features = weight.sym_size(0);
  const int64_t taps = taps_of(weight.sizes());
  const auto turned = detail::transposed(weight.reshape_symint({1, features, -1}));
  const auto itself = at::eye_symint(features, weight.options()).mul(1 - ratio);
  const auto matrix = turned.reshape_symint({features, taps, features}).mul(ratio);
  return {matrix.add(in_middle_tap(itself, taps)).flatten(1),
          in_middle_tap(bias.mul(ratio), taps).flatten()};
}

SpreadProduct spread_product_backward(const SpreadProduct& grads, at::IntArrayRef sizes,
                                      double ratio) {
  SpreadProduct result;
  const int64_t dim = sizes[0], middle = taps_of(sizes) / 2 * dim;
  if (grads.matrix.defined()) {
    const auto turned = detail::transposed(grads.matrix.reshape({1, -1, dim}));
    result.matrix = turned.contiguous().mul(ratio).view(sizes);
  }
  if (grads.offset.defined()) {
    result.offset = grads.offset.slice(0, middle, middle + dim).mul(ratio);
  }
  return result;
}

at::Tensor spread_tokens(const at::Tensor& tokens, at::IntArrayRef size, c10::SymIntArrayRef full,
                         const SpreadProduct& product, at::IntArrayRef kernel) {
  const auto rows = tokens.reshape_symint({-1, tokens.sym_size(2)});
  const auto products = ops::row_products(rows, product.matrix, product.offset);
  return ops::resample_scale(
      products.reshape_symint({tokens.sym_size(0), tokens.sym_size(1), products.sym_size(1)}), size,
      full, "interpolate", kernel);
}

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
  check_convolution(op, weight, bias, tokens.sym_size(2), size.size(), ratio);
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
  if (tokens.is_cpu()) {
    const auto product = spread_product(wide, offset, ratio);
    return spread_tokens(tokens, size, full, product, weight.sizes().slice(2));
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
