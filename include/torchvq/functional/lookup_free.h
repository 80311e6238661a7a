// Sphere, projection and loss of the lookup-free quantizers: composites of differentiable
// operators.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Vectors of length `radius` in the direction of x (zero stays zero), float32 or float64.
TORCHVQ_API at::Tensor on_sphere(const at::Tensor& x, double radius);

/// Scaled cosines between tokens and the columns of a matrix.
///
/// Formula  y[..., j] = scale * <x, w_j> / (|x| |w_j|)
///
/// @param x       (..., D), floating point.
/// @param weight  (D, D'), floating point.
/// @return        (..., D'), float64 if an argument is float64, otherwise float32.
/// Throws         c10::ValueError for shapes that do not fit, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor cosine_linear(const at::Tensor& x, const at::Tensor& weight, double scale);

/// Weights of the loss of lookup-free quantization.
struct LookupFreeWeights {
  double entropy = 0.1;
  double diversity_gamma = 1;
  double commitment = 0;
  std::optional<double> softplus_offset;
};

/// entropy * (per_sample - diversity_gamma * batch) + commitment * commitment_loss; with
/// softplus_offset s the bracket b becomes log(1 + exp(b + s)), which is positive.
TORCHVQ_API at::Tensor lookup_free_loss(const at::Tensor& per_sample, const at::Tensor& batch,
                                        const at::Tensor& commitment_loss,
                                        const LookupFreeWeights& weights);

}  // namespace torchvq::functional
