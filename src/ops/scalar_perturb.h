#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "detail/distribution.h"
#include "detail/precision.h"

namespace torchvq::detail {

/// The parsed string arguments of a call.
struct PerturbKind {
  Distribution cdf;
  CodeForm form;
};

/// Called by every kernel.
PerturbKind check_scalar_perturb(const at::Tensor& x, at::IntArrayRef levels,
                                 const std::optional<at::Tensor>& rng, double quantize_rate,
                                 std::string_view cdf, std::string_view form, double eps,
                                 const std::optional<at::Tensor>& mask);
PerturbKind check_scalar_perturb_backward(const at::Tensor& grad, const at::Tensor& x,
                                          const at::Tensor& indices, std::string_view cdf,
                                          std::string_view form);
PerturbKind check_scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels,
                                   std::string_view cdf, std::string_view form, double eps,
                                   at::ScalarType dtype);
void check_scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels);

/// The kernel for any device; the CPU kernel falls back to it for codes of the form `inverse`.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> scalar_perturb_any(
    const at::Tensor& x, at::IntArrayRef levels, const std::optional<at::Tensor>& rng,
    double quantize_rate, std::string_view cdf, std::string_view form, double eps,
    const std::optional<at::Tensor>& mask);

/// F(x), element by element, contiguous for contiguous x, and its inverse; both are differentiable.
at::Tensor cumulative_any(Distribution kind, const at::Tensor& x);
at::Tensor quantile_any(Distribution kind, const at::Tensor& u);

}  // namespace torchvq::detail
