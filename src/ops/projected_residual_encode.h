// Shared by all kernels of projected_residual_encode: argument checks, the common form for
// computation, and the layout of results.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// quantized, indices, latents, errors
using ProjectedResidualTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// The arguments of the call.
struct ProjectedResidualArguments {
  const at::Tensor& x;
  at::TensorList codebooks, in_weights, in_biases, out_weights, out_biases;
  std::string_view metric;
  double zero_code;
};

void check_projected_residual_encode(const ProjectedResidualArguments& arguments);

/// float64 if any argument is float64, otherwise float32.
at::ScalarType projected_residual_dtype(const ProjectedResidualArguments& arguments);

/// Uninitialised results with the memory layout of x.
ProjectedResidualTensors projected_residual_results(const ProjectedResidualArguments& arguments);

/// Checked arguments in the dtype of the computation; tensors of levels are
/// contiguous, x keeps its layout.
struct ProjectedResidualProblem {
  explicit ProjectedResidualProblem(const ProjectedResidualArguments& arguments);

  at::Tensor x;  ///< (B, T, C)
  std::vector<at::Tensor> codebooks, in_weights, in_biases, out_weights, out_biases;
  bool cosine = false;
  double zero_code = 0;
  int64_t tokens = 0, features = 0, dim = 0;  ///< T, C, D
};

}  // namespace torchvq::detail
