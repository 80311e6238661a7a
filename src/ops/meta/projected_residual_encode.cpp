#include "ops/projected_residual_encode.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::ProjectedResidualTensors projected_residual_encode(
    const at::Tensor& x, at::TensorList codebooks, at::TensorList in_weights,
    at::TensorList in_biases, at::TensorList out_weights, at::TensorList out_biases,
    std::string_view metric, double zero_code) {
  const detail::ProjectedResidualArguments arguments = {
      x, codebooks, in_weights, in_biases, out_weights, out_biases, metric, zero_code};
  detail::check_projected_residual_encode(arguments);
  return detail::projected_residual_results(arguments);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("projected_residual_encode", projected_residual_encode);
}

}  // namespace torchvq
