#include "functional/scales_node.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <torchvq/functional/losses.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/quantize_and_commit.h>
#include <torchvq/ops/row_products.h>

#include "detail/once_differentiable.h"
#include "detail/readable.h"
#include "detail/without_autocast.h"
#include "functional/estimate.h"
#include "functional/spread_scale.h"
#include "ops/resample_scale.h"

namespace torchvq::functional {
namespace {

using detail::Resampling;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kSizes = "sizes", kFull = "full", kConvolutions = "convolutions", kRatio = "ratio",
               kNodeEstimator = "estimator", kWeight = "commitment_weight";

/// The forward of the node, without a graph.
struct Walked {
  at::Tensor total, loss;
  variable_list tokens, codes, indices;
  std::vector<SpreadProduct> products;  ///< of each convolution
};

at::IntArrayRef kernel_of(const at::Tensor& weight) { return weight.sizes().slice(2); }

/// Of the rows of a map, and of tokens.
at::Tensor resample(const at::Tensor& input, at::IntArrayRef size, at::IntArrayRef full,
                    Resampling direction, at::IntArrayRef kernel = {}) {
  return detail::resample_on_cpu(input, size, full, direction, kernel, /*map_of_rows=*/true);
}

Walked walk(const ScalesOnCpu& scales) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& options = scales.options;
  Walked done;
  const auto dtype = scales.rows.scalar_type();
  for (size_t i = 0; i < scales.convolutions.weights.size(); ++i) {
    done.products.push_back(spread_product(scales.convolutions.weights[i].detach().to(dtype),
                                           scales.convolutions.biases[i].detach().to(dtype),
                                           options.ratio()));
  }
  const auto search = ops::NearestCodeOptions().return_codes(true);
  auto residual = scales.rows.detach();
  const auto dim = residual.size(2);
  const size_t count = options.sizes().size();
  for (size_t scale = 0; scale < count; ++scale) {
    const auto& size = options.sizes()[scale];
    const auto at = static_cast<size_t>(options.convolutions()[scale]);
    auto tokens = resample(residual, size, scales.full, Resampling::kAverage);
    const int64_t batch = tokens.size(0), cells = tokens.size(1);
    // As quantize_and_commit() does it, without a copy of the codes.
    const auto own = tokens.view({1, batch * cells, dim});
    auto found = ops::nearest_code(own, scales.codebooks[scale].to(dtype), search);
    if (options.commitment_weight() != 0) {
      const auto commitment = ops::commitment_loss(own, found.codes);
      done.loss = done.loss.defined() ? done.loss.add_(commitment) : commitment;
    }
    const auto& [matrix, offset] = done.products[at];
    const auto products = ops::row_products(found.codes[0], matrix, offset);
    auto map = resample(products.view({batch, cells, -1}), size, scales.full,
                        Resampling::kInterpolate, kernel_of(scales.convolutions.weights[at]));
    if (scale == 0) {
      if (count > 1) residual = residual.sub(map);
      done.total = std::move(map);
    } else {
      if (scale + 1 < count) residual.sub_(map);
      done.total.add_(map);
    }
    done.tokens.push_back(std::move(tokens));
    done.codes.push_back(std::move(found.codes));
    done.indices.push_back(found.indices.view({batch, cells}));
  }
  if (!done.loss.defined()) {
    done.loss = at::zeros({}, residual.options());
    return done;
  }
  done.loss.div_(static_cast<int64_t>(count));
  if (options.commitment_weight() != 1) done.loss.mul_(options.commitment_weight());
  return done;
}

/// Adds to a gradient, in the order in which a graph of single scales does.
void accumulate(at::Tensor& sum, at::Tensor value) {
  if (sum.defined()) {
    sum.add_(value);
  } else {
    sum = std::move(value);
  }
}

/// Total and loss as functions of rows, weights and biases.
struct ScalesNode : torch::autograd::Function<ScalesNode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& rows, at::TensorList weights,
                               at::TensorList biases, const Walked& walked,
                               const ScalesOnCpu& scales) {
    variable_list saved{rows}, matrices;
    for (const auto& product : walked.products) matrices.push_back(product.matrix);
    for (const auto part : {at::TensorList(walked.tokens), at::TensorList(walked.codes),
                            at::TensorList(matrices), weights, biases}) {
      saved.insert(saved.end(), part.begin(), part.end());
    }
    ctx->save_for_backward(std::move(saved));
    std::vector<int64_t> sizes;
    for (const auto& size : scales.options.sizes()) {
      sizes.insert(sizes.end(), size.begin(), size.end());
    }
    ctx->saved_data[kSizes] = std::move(sizes);
    ctx->saved_data[kFull] = scales.full;
    ctx->saved_data[kConvolutions] = scales.options.convolutions();
    ctx->saved_data[kRatio] = scales.options.ratio();
    ctx->saved_data[kNodeEstimator] = scales.options.estimator();
    ctx->saved_data[kWeight] = scales.options.commitment_weight();
    ctx->set_materialize_grads(false);
    return {walked.total, walked.loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const detail::WithoutAutocast without_autocast;
    const auto saved = ctx->get_saved_variables();
    const auto scales = scales_of(ctx, saved);
    const size_t count = scales.options.sizes().size();
    const auto part = [&](size_t first, size_t length) {
      const auto begin = saved.begin() + static_cast<int64_t>(first);
      return variable_list(begin, begin + static_cast<int64_t>(length));
    };
    const auto tokens = part(1, count), codes = part(1 + count, count);
    if (at::GradMode::is_enabled()) return differentiable_gradients(ctx, scales, codes, grads);
    const auto matrices = part(1 + 2 * count, scales.convolutions.weights.size());
    return gradients(ctx, {scales, tokens, codes, matrices}, grads);
  }

 private:
  struct Saved {
    const ScalesOnCpu& scales;
    const variable_list &tokens, &codes, &matrices;
  };

  static ScalesOnCpu scales_of(AutogradContext* ctx, const variable_list& saved);
  static variable_list gradients(AutogradContext* ctx, const Saved& saved,
                                 const variable_list& grads);
  static variable_list differentiable_gradients(AutogradContext* ctx, const ScalesOnCpu& scales,
                                                const variable_list& codes,
                                                const variable_list& grads);
};

ScalesOnCpu ScalesNode::scales_of(AutogradContext* ctx, const variable_list& saved) {
  auto& constants = ctx->saved_data;
  ScalesOnCpu scales;
  scales.rows = saved[0];
  scales.full = constants[kFull].toIntVector();
  const auto sizes = constants[kSizes].toIntVector();
  auto convolutions = constants[kConvolutions].toIntVector();
  const size_t axes = scales.full.size(), count = convolutions.size();
  for (size_t scale = 0; scale < count; ++scale) {
    scales.options.sizes().push_back(at::IntArrayRef(sizes).slice(scale * axes, axes).vec());
  }
  const size_t known = (saved.size() - 1 - 2 * count) / 3;
  const auto weights = saved.begin() + static_cast<int64_t>(1 + 2 * count + known);
  const auto biases = weights + static_cast<int64_t>(known);
  scales.convolutions = {{weights, biases}, {biases, saved.end()}};
  scales.options.convolutions(std::move(convolutions))
      .ratio(constants[kRatio].toDouble())
      .estimator(constants[kNodeEstimator].toStringRef())
      .commitment_weight(constants[kWeight].toDouble());
  return scales;
}

variable_list ScalesNode::gradients(AutogradContext* ctx, const Saved& saved,
                                    const variable_list& grads) {
  const auto& [scales, tokens, codes, matrices] = saved;
  const auto& options = scales.options;
  const size_t count = codes.size(), known = matrices.size();
  const bool to_rows = ctx->needs_input_grad(0), estimates = options.estimator() != "none";
  const bool rotates = options.estimator() == "rotation_trick";
  at::Tensor of_commitment;
  if (grads[1].defined() && options.commitment_weight() != 0) {
    of_commitment = grads[1].mul(options.commitment_weight()).div(static_cast<int64_t>(count));
  }
  std::vector<SpreadProduct> of_convolutions(known);
  at::Tensor of_residual;  // of what the scale leaves to the next one
  for (size_t scale = count; scale-- > 0;) {
    const auto& size = options.sizes()[scale];
    const auto at = static_cast<size_t>(options.convolutions()[scale]);
    auto of_map = grads[0];
    if (of_residual.defined()) of_map = of_map.defined() ? of_map - of_residual : of_residual.neg();
    // Tokens depend on the convolutions of the scales before.
    const bool passes = to_rows || scale > 0;
    at::Tensor of_codes;
    if (of_map.defined()) {
      const auto taps = resample(of_map, size, scales.full, Resampling::kInterpolateBackward,
                                 kernel_of(scales.convolutions.weights[at]));
      const auto products = taps.flatten(0, 1);
      const auto rows = codes[scale].flatten(0, 1);
      if (ctx->needs_input_grad(1 + at)) {
        accumulate(of_convolutions[at].matrix, rows.t().mm(products));
      }
      if (ctx->needs_input_grad(1 + known + at)) {
        accumulate(of_convolutions[at].offset, products.sum(0));
      }
      if (passes && estimates) {
        of_codes = products.mm(matrices[at].t()).view(tokens[scale].sizes());
      }
    }
    if (!passes || (!of_codes.defined() && !of_commitment.defined())) continue;
    if (!of_codes.defined()) of_codes = at::zeros_like(tokens[scale]);
    const auto commitment = of_commitment.defined() ? of_commitment : of_codes.new_zeros({});
    const auto of_tokens = ops::quantize_and_commit_backward(of_codes, commitment, tokens[scale],
                                                             codes[scale], rotates);
    accumulate(of_residual, resample(of_tokens, size, scales.full, Resampling::kAverageBackward));
  }
  variable_list result(1 + 2 * known + 2);  // walked and scales have none
  if (to_rows) result[0] = of_residual;
  for (size_t at = 0; at < known; ++at) {
    const auto &weight = scales.convolutions.weights[at], &bias = scales.convolutions.biases[at];
    auto own = spread_product_backward(of_convolutions[at], weight.sizes(), options.ratio());
    if (own.matrix.defined()) result[1 + at] = own.matrix.to(weight.scalar_type());
    if (own.offset.defined()) result[1 + known + at] = own.offset.to(bias.scalar_type());
  }
  return result;
}

/// The same as functions of rows, weights and biases.
variable_list ScalesNode::differentiable_gradients(AutogradContext* ctx, const ScalesOnCpu& scales,
                                                   const variable_list& codes,
                                                   const variable_list& grads) {
  if (scales.options.estimator() == "rotation_trick") {
    detail::check_once_differentiable("rotation_trick");
  }
  const auto again = scales_of_codes(scales, codes);
  variable_list outputs, upstream, inputs;
  for (const auto& [output, grad] :
       {std::pair(again.quantized, grads[0]), std::pair(again.loss, grads[1])}) {
    if (!grad.defined() || !output.requires_grad()) continue;
    outputs.push_back(output);
    upstream.push_back(grad);
  }
  std::vector<size_t> places;
  variable_list every{scales.rows};
  const auto& [weights, biases] = scales.convolutions;
  every.insert(every.end(), weights.begin(), weights.end());
  every.insert(every.end(), biases.begin(), biases.end());
  for (size_t i = 0; i < every.size(); ++i) {
    if (!ctx->needs_input_grad(i)) continue;
    inputs.push_back(every[i]);
    places.push_back(i);
  }
  variable_list result(every.size() + 2);
  if (outputs.empty()) return result;
  auto found = torch::autograd::grad(outputs, inputs, upstream, /*retain_graph=*/true,
                                     /*create_graph=*/true, /*allow_unused=*/true);
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(found[i]);
  return result;
}

bool needs_gradient(const ScalesOnCpu& scales) {
  const auto& [weights, biases] = scales.convolutions;
  return detail::needs_gradient(scales.rows) ||
         std::any_of(weights.begin(), weights.end(), detail::needs_gradient) ||
         std::any_of(biases.begin(), biases.end(), detail::needs_gradient);
}

}  // namespace

bool one_node_quantizes_scales(const ScalesOnCpu& scales) {
  const auto& [weights, biases] = scales.convolutions;
  const auto& estimator = scales.options.estimator();
  return scales.rows.numel() > 0 && (estimator == "none" || is_plain_estimator(estimator, 0)) &&
         std::all_of(weights.begin(), weights.end(), detail::is_readable) &&
         std::all_of(biases.begin(), biases.end(), detail::is_readable);
}

HierarchicalQuantizeOutput quantize_scales_by_one_node(ScalesOnCpu scales) {
  const auto& options = scales.options;
  if (!options.training()) scales.options.commitment_weight(0);
  auto walked = walk(scales);
  HierarchicalQuantizeOutput output;
  join_tokens(output, walked.tokens, walked.indices, options);
  if (needs_gradient(scales)) {
    const auto found =
        ScalesNode::apply(scales.rows, at::TensorList(scales.convolutions.weights),
                          at::TensorList(scales.convolutions.biases), walked, scales);
    walked.total = found[0];
    walked.loss = options.training() ? found[1] : found[1].detach();
  }
  output.quantized = std::move(walked.total);
  // A loss without a gradient gets the graph that training expects.
  output.loss = options.training() && !walked.loss.requires_grad()
                    ? weighted_loss({walked.loss}, {1}, /*training=*/true)
                    : std::move(walked.loss);
  return output;
}

}  // namespace torchvq::functional
