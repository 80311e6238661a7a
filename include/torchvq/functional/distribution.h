// The distribution functions that finite scalar perturbation bounds latents with.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// F(x) in [0, 1], in float32 (float64 for float64 x) under any autocast.
///
/// @param x    any shape, floating point.
/// @param cdf  `tanh` (logistic of scale 1/2), `sigmoid` (logistic), `normal`, `laplace`, `cauchy`.
/// Gradient    the density.
/// Throws      c10::ValueError for another name, c10::TypeError for a bad dtype.
TORCHVQ_API at::Tensor distribution_cdf(const at::Tensor& x, std::string_view cdf);

/// The inverse: x with F(x) = u. -infinity for 0, infinity for 1, NaN outside of [0, 1].
///
/// @param u  any shape, floating point; the rest as above.
/// Gradient  one over the density.
TORCHVQ_API at::Tensor distribution_quantile(const at::Tensor& u, std::string_view cdf);

}  // namespace torchvq::functional
