#include <torchvq/functional/hierarchical_quantize.h>

#include <optional>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <torchvq/functional/losses.h>
#include <torchvq/functional/scales.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/quantize_and_commit.h>
#include <torchvq/ops/straight_through.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "detail/without_autocast.h"
#include "functional/operator_options.h"
#include "functional/scales_node.h"
#include "functional/spread_scale.h"
#include "ops/resample_scale.h"

namespace torchvq::functional {
namespace {

constexpr auto kOp = "hierarchical_quantize";

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<std::vector<int64_t>>;

void check_arguments(const at::Tensor& rows, c10::SymIntArrayRef full, const Tensors& codebooks,
                     const ScaleConvolutions& convolutions,
                     const HierarchicalQuantizeOptions& options) {
  const auto dtype = rows.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, kOp,
                   ": expected rows to be float32 or float64, but got ", dtype);
  c10::SymInt positions = 1;
  for (const auto& size : full) positions *= size;
  TORCH_CHECK_VALUE(rows.dim() == 3 && rows.sym_size(1) == positions, kOp,
                    ": expected rows to have shape (B, ", positions, ", D), but got ",
                    rows.sym_sizes());
  const auto scales = options.sizes().size();
  TORCH_CHECK_VALUE(scales > 0, kOp, ": expected sizes to hold at least one grid, but got none");
  check_one_per_level(kOp, "codebooks", codebooks.size(), scales);
  check_one_per_level(kOp, "convolutions", options.convolutions().size(), scales);
  const auto known = static_cast<int64_t>(convolutions.weights.size());
  check_one_per_level(kOp, "biases", convolutions.biases.size(), convolutions.weights.size());
  for (const auto convolution : options.convolutions()) {
    TORCH_CHECK_VALUE(convolution >= 0 && convolution < known, kOp,
                      ": expected convolutions to be in [0, ", known, "), but got ", convolution);
  }
  for (const auto& codebook : codebooks) {
    detail::check_floating(kOp, "codebooks", codebook);
    TORCH_CHECK_VALUE(codebook.dim() == 3 && codebook.sym_size(0) == 1 &&
                          codebook.sym_size(1) >= 1 && codebook.sym_size(2) == rows.sym_size(2),
                      kOp, ": expected codebooks to have shape (1, K, ", rows.sym_size(2),
                      "), the features of rows, but got ", codebook.sym_sizes());
    detail::check_same_device(kOp, "rows", rows, "codebooks", codebook);
  }
  for (size_t i = 0; i < convolutions.weights.size(); ++i) {
    detail::check_same_device(kOp, "rows", rows, "weights", convolutions.weights[i]);
    detail::check_same_device(kOp, "rows", rows, "biases", convolutions.biases[i]);
    check_convolution(kOp, convolutions.weights[i], convolutions.biases[i], rows.sym_size(2),
                      full.size(), options.ratio());
  }
  for (const auto& size : options.sizes()) {
    detail::check_grid(kOp, size);
    TORCH_CHECK_VALUE(size.size() == full.size(), kOp, ": expected full to have ", size.size(),
                      " numbers, but got ", full);
  }
}

/// (B, P, D) to (B, D, *full).
at::Tensor map_of_rows(const at::Tensor& rows, c10::SymIntArrayRef full) {
  std::vector<c10::SymInt> shape{rows.sym_size(0), rows.sym_size(2)};
  shape.insert(shape.end(), full.begin(), full.end());
  return rows.transpose(1, 2).reshape_symint(shape);
}

/// What is left, and the sums over the scales.
class Scales {
 public:
  Scales(const at::Tensor& rows, c10::SymIntArrayRef full, const ScaleConvolutions& convolutions,
         const HierarchicalQuantizeOptions& options)
      : full_(full),
        convolutions_(convolutions),
        options_(options),
        residual_(map_of_rows(rows, full)) {
    if (!rows.is_cpu()) return;
    for (size_t i = 0; i < convolutions.weights.size(); ++i) {
      products_.push_back(spread_product(convolutions.weights[i].to(rows.scalar_type()),
                                         convolutions.biases[i].to(rows.scalar_type()),
                                         options.ratio()));
    }
  }

  at::Tensor tokens(size_t scale) const { return pool_scale(residual_, options_.sizes()[scale]); }

  void add(size_t scale, const at::Tensor& codes, const at::Tensor& commitment) {
    const auto map = spread(scale, codes);
    total_ = total_.defined() ? total_.add(map) : map;
    commitment_ = commitment_.defined() ? commitment_.add(commitment) : commitment;
    if (scale + 1 < options_.sizes().size()) residual_ = residual_.sub(map);
  }

  HierarchicalQuantizeOutput output() const {
    HierarchicalQuantizeOutput output;
    output.quantized = total_.flatten(2).transpose(1, 2);
    const auto mean = commitment_.div(static_cast<int64_t>(options_.sizes().size()));
    output.loss = weighted_loss({mean}, {options_.commitment_weight()}, options_.training());
    return output;
  }

 private:
  at::Tensor spread(size_t scale, const at::Tensor& codes) const {
    const auto at = static_cast<size_t>(options_.convolutions()[scale]);
    const auto& size = options_.sizes()[scale];
    const auto &weight = convolutions_.weights[at], &bias = convolutions_.biases[at];
    const bool empty = codes.sym_numel() == 0 || residual_.sym_numel() == 0;
    if (products_.empty() || empty) {
      return spread_scale(codes, size, full_, weight, bias, options_.ratio());
    }
    return spread_tokens(codes, size, full_, products_[at], weight.sizes().slice(2));
  }

  c10::SymIntArrayRef full_;
  const ScaleConvolutions& convolutions_;
  const HierarchicalQuantizeOptions& options_;
  std::vector<SpreadProduct> products_;  ///< of each convolution, on the CPU
  at::Tensor residual_, total_, commitment_;
};

HierarchicalQuantizeOutput quantize_in_turn(const at::Tensor& rows, c10::SymIntArrayRef full,
                                            const Tensors& codebooks,
                                            const ScaleConvolutions& convolutions,
                                            const HierarchicalQuantizeOptions& options) {
  Scales scales(rows, full, convolutions, options);
  Tensors tokens, indices;
  for (size_t scale = 0; scale < codebooks.size(); ++scale) {
    const auto own = scales.tokens(scale);
    auto found = ops::quantize_and_commit(own, codebooks[scale], options.estimator());
    scales.add(scale, found.quantized, found.commitment);
    tokens.push_back(own.detach());
    indices.push_back(std::move(found.indices));
  }
  auto output = scales.output();
  if (!options.training()) output.loss = output.loss.detach().new_zeros({});
  join_tokens(output, tokens, indices, options);
  return output;
}

}  // namespace

void join_tokens(HierarchicalQuantizeOutput& output, const Tensors& tokens, const Tensors& indices,
                 const HierarchicalQuantizeOptions& options) {
  output.indices = indices;
  output.tokens = options.training() ? at::cat(tokens, 1) : tokens[0].slice(1, 0, 0);
  output.token_indices = options.training() ? at::cat(indices, 1) : indices[0].slice(1, 0, 0);
}

HierarchicalQuantizeOutput scales_of_codes(const ScalesOnCpu& scales, const Tensors& codes) {
  const auto full = c10::fromIntArrayRefSlow(scales.full);
  Scales walk(scales.rows, full, scales.convolutions, scales.options);
  const bool estimates = scales.options.estimator() != "none";
  for (size_t scale = 0; scale < codes.size(); ++scale) {
    const auto tokens = walk.tokens(scale);
    const auto own = codes[scale].view(tokens.sizes());
    walk.add(scale, estimates ? ops::straight_through(tokens, own) : own,
             ops::commitment_loss(tokens.reshape(codes[scale].sizes()), codes[scale]));
  }
  return walk.output();
}

HierarchicalQuantizeOutput hierarchical_quantize(const at::Tensor& rows, c10::SymIntArrayRef full,
                                                 const Tensors& codebooks,
                                                 const ScaleConvolutions& convolutions,
                                                 const HierarchicalQuantizeOptions& options) {
  const detail::WithoutAutocast without_autocast;
  check_arguments(rows, full, codebooks, convolutions, options);
  if (detail::may_shorten_graph(rows)) {
    ScalesOnCpu scales{rows, C10_AS_INTARRAYREF_SLOW(full).vec(), codebooks, convolutions, options};
    if (one_node_quantizes_scales(scales)) return quantize_scales_by_one_node(std::move(scales));
  }
  return quantize_in_turn(rows, full, codebooks, convolutions, options);
}

namespace {

using Quantized = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, Tensors>;

Quantized quantize_op(const at::Tensor& rows, at::TensorList codebooks, at::TensorList weights,
                      at::TensorList biases, at::IntArrayRef sizes, c10::SymIntArrayRef full,
                      at::IntArrayRef convolutions, double ratio, std::string_view estimator,
                      double commitment_weight, bool training) {
  const auto axes = full.size();
  TORCH_CHECK_VALUE(axes > 0 && sizes.size() == axes * codebooks.size(), kOp,
                    ": expected sizes to be ", axes, " numbers (those of full) for each of ",
                    codebooks.size(), " codebooks, but got ", sizes);
  HierarchicalQuantizeOptions options;
  for (size_t scale = 0; scale < codebooks.size(); ++scale) {
    options.sizes().push_back(sizes.slice(scale * axes, axes).vec());
  }
  options.convolutions(convolutions.vec())
      .ratio(ratio)
      .estimator(std::string(estimator))
      .commitment_weight(commitment_weight)
      .training(training);
  auto output =
      hierarchical_quantize(rows, full, codebooks.vec(), {weights.vec(), biases.vec()}, options);
  return {std::move(output.quantized), std::move(output.loss), std::move(output.tokens),
          std::move(output.token_indices), std::move(output.indices)};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "hierarchical_quantize(Tensor rows, Tensor[] codebooks, Tensor[] weights, Tensor[] biases, "
      "*, "
      "int[] sizes, SymInt[] full, int[] convolutions, float ratio=0.5, "
      "str estimator='straight_through', float commitment_weight=1., bool training=True) "
      "-> (Tensor quantized, Tensor loss, Tensor tokens, Tensor token_indices, Tensor[] indices)",
      torchvq::functional::quantize_op);
}
