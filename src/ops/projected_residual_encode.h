// What all kernels of projected_residual_encode share: argument checks, the form that they compute
// on, and how results lie.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// quantized, indices, latents, errors
using ProjectedResidualTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// The arguments as they came.
struct ProjectedResidualArguments {
  const at::Tensor& x;
  at::TensorList codebooks, in_weights, in_biases, out_weights, out_biases;
  std::string_view metric;
  double zero_code;
};

void check_projected_residual_encode(const ProjectedResidualArguments& arguments);

/// float64 if one of the arguments is, otherwise float32.
at::ScalarType projected_residual_dtype(const ProjectedResidualArguments& arguments);

/// Results that lie in memory as x does, not initialised.
ProjectedResidualTensors projected_residual_results(const ProjectedResidualArguments& arguments);

/// Checked arguments in the computation's dtype; all of a level contiguous, x as it lies.
struct ProjectedResidualProblem {
  explicit ProjectedResidualProblem(const ProjectedResidualArguments& arguments);

  at::Tensor x;  ///< (B, T, C)
  std::vector<at::Tensor> codebooks, in_weights, in_biases, out_weights, out_biases;
  bool cosine = false;
  double zero_code = 0;
  int64_t tokens = 0, features = 0, dim = 0;  ///< T, C, D
};

}  // namespace torchvq::detail
