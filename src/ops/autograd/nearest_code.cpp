#include <torchvq/ops/nearest_code.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/add_rows.h"
#include "detail/differentiable.h"

#include "ops/nearest_code.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// sum of a * b over the last axis
at::Tensor dot_rows(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(-1, /*keepdim=*/true);
}

at::Tensor inverse_norm(const at::Tensor& a) {
  const auto norm = dot_rows(a, a).sqrt();
  return norm.reciprocal().masked_fill(norm.eq(0), 0);
}

struct Gradients {
  at::Tensor x, codes;
};

/// Gradient of ||x - c||^2 or of 1 - <x, c> / (||x|| ||c||), whose gradient at a zero vector is
/// taken as 0. `grad` has a trailing axis of size 1.
Gradients distance_gradients(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& grad,
                             bool cosine) {
  if (!cosine) {
    const auto to_x = (x - codes) * (grad * 2);
    return {to_x, -to_x};
  }
  const auto x_scale = inverse_norm(x), code_scale = inverse_norm(codes);
  const auto unit_x = x * x_scale, unit_code = codes * code_scale;
  const auto similarity = dot_rows(unit_x, unit_code);
  return {(unit_x * similarity - unit_code) * (x_scale * grad),
          (unit_code * similarity - unit_x) * (code_scale * grad)};
}

/// Zeros of `shape`, (K, D) or (H, K, D), with row i of `grad` (.., D) added to row indices[i].
/// Heads come first in `grad` and `indices`; a shape without heads of its own sums over them.
at::Tensor scatter_rows(const at::Tensor& grad, const at::Tensor& indices,
                        c10::SymIntArrayRef shape) {
  const auto heads = shape.size() == 3 ? shape[0] : c10::SymInt(1);
  const auto &size = shape[shape.size() - 2], &dim = shape[shape.size() - 1];
  const auto rows = indices.sym_numel() / heads;
  return detail::add_rows(grad.reshape_symint({heads, rows, dim}),
                          indices.reshape_symint({heads, rows}), size)
      .reshape_symint(shape);
}

struct NearestCode : torch::autograd::Function<NearestCode> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& codebook, const std::optional<at::Tensor>& bias,
                               const std::string& metric, std::optional<int64_t> topk,
                               bool return_distances, const std::optional<at::Tensor>& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // The gradient of distances needs the chosen codes with their current values: as an output of
    // the leaf operator they are saved, and not looked up again in a codebook that may have been
    // updated. They are an output of this function even if nobody asked for them: a constant would
    // hide the second derivative of the distances.
    const auto out = ops::nearest_code(x, codebook,
                                       ops::NearestCodeOptions()
                                           .metric(metric)
                                           .bias(bias)
                                           .topk(topk)
                                           .return_codes(true)
                                           .return_distances(return_distances)
                                           .mask(mask));
    const bool differentiable = (return_distances && x.requires_grad()) ||
                                codebook.requires_grad() || (bias && bias->requires_grad());
    // Users may write to the codes and indices that they receive.
    const auto indices = differentiable ? out.indices.clone() : out.indices;
    ctx->save_for_backward({return_distances ? x : at::Tensor(), indices,
                            return_distances ? out.codes : at::Tensor(),
                            mask.value_or(at::Tensor()), out.codes.select(-1, 0).isnan()});
    ctx->saved_data["cosine"] = metric == "cosine";
    ctx->saved_data["topk"] = topk.has_value();
    ctx->saved_data["codebook_shape"] = codebook.sym_sizes();
    ctx->saved_data["codebook_dtype"] = codebook.scalar_type();
    if (bias) {
      ctx->saved_data["bias_shape"] = bias->sym_sizes();
      ctx->saved_data["bias_dtype"] = bias->scalar_type();
    }
    variable_list constant = {out.indices};
    if (!return_distances) constant.push_back(out.distances);
    ctx->mark_non_differentiable(constant);
    ctx->set_materialize_grads(false);
    return {out.indices, out.codes, out.distances};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

std::vector<c10::SymInt> saved_shape(AutogradContext* ctx, const char* name) {
  return ctx->saved_data[name].toSymIntVector();
}

variable_list NearestCode::backward(AutogradContext* ctx, const variable_list& grads) {
  const auto saved = ctx->get_saved_variables();
  const auto &x = saved[0], &codes = saved[2], &mask = saved[3];
  const auto &grad_codes = grads[1], &grad_distances = grads[2];
  const bool topk = ctx->saved_data["topk"].toBool();
  variable_list result(7);
  auto to_codes = grad_codes;
  // Rows whose x is not finite have NaN as code; like padding, they belong to no code.
  auto absent = saved[4];
  auto indices = saved[1];
  if (mask.defined()) {
    const auto padding = mask.logical_not();
    absent = absent.logical_or(topk ? padding.unsqueeze(-1) : padding);
    indices = indices.clamp_min(0);
  }

  if (grad_distances.defined()) {
    const auto wide_x = (topk ? x.unsqueeze(-2) : x).to(codes.scalar_type());
    const auto part = distance_gradients(wide_x, codes, grad_distances.unsqueeze(-1),
                                         ctx->saved_data["cosine"].toBool());
    result[0] = (topk ? part.x.sum(-2) : part.x).to(x.scalar_type());
    if (mask.defined()) result[0] = result[0].masked_fill(mask.logical_not().unsqueeze(-1), 0);
    to_codes = to_codes.defined() ? to_codes + part.codes : part.codes;
    if (ctx->saved_data.count("bias_shape") > 0 && ctx->needs_input_grad(2)) {
      auto shape = saved_shape(ctx, "bias_shape");
      shape.emplace_back(1);
      result[2] = scatter_rows(grad_distances.masked_fill(absent, 0), indices, shape)
                      .squeeze(-1)
                      .to(ctx->saved_data["bias_dtype"].toScalarType());
    }
  }
  if (to_codes.defined() && ctx->needs_input_grad(1)) {
    const auto rows = to_codes.masked_fill(absent.unsqueeze(-1), 0);
    result[1] = scatter_rows(rows, indices, saved_shape(ctx, "codebook_shape"))
                    .to(ctx->saved_data["codebook_dtype"].toScalarType());
  }
  return result;
}

detail::NearestCodeTensors nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                        std::string_view metric,
                                        const std::optional<at::Tensor>& bias,
                                        std::optional<int64_t> topk, bool return_codes,
                                        bool return_distances,
                                        const std::optional<at::Tensor>& mask) {
  const bool to_codebook = codebook.requires_grad() && (return_codes || return_distances);
  const bool to_others = return_distances && (x.requires_grad() || (bias && bias->requires_grad()));
  if (!at::GradMode::is_enabled() || !(to_codebook || to_others)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto out = ops::nearest_code(x, codebook,
                                 ops::NearestCodeOptions()
                                     .metric(std::string(metric))
                                     .bias(bias)
                                     .topk(topk)
                                     .return_codes(return_codes)
                                     .return_distances(return_distances)
                                     .mask(mask));
    return {std::move(out.indices), std::move(out.codes), std::move(out.distances)};
  }
  auto out = detail::differentiable<NearestCode>(x, codebook, bias, std::string(metric), topk,
                                                 return_distances, mask);
  auto codes = return_codes ? std::move(out[1]) : out[1].new_empty({0});
  return {std::move(out[0]), std::move(codes), std::move(out[2])};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("nearest_code", nearest_code); }

}  // namespace torchvq
