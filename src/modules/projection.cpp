#include "modules/projection.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

namespace torchvq::detail {

at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens) {
  const auto dtype = layer->weight.scalar_type();
  // The meta device has no autocast, and asking for it is an error.
  const bool decides = !tokens.is_meta() &&
                       at::autocast::is_autocast_enabled(tokens.device().type()) &&
                       tokens.scalar_type() != torch::kDouble && dtype != torch::kDouble;
  return at::linear(decides ? tokens : tokens.to(dtype), layer->weight, layer->bias);
}

}  // namespace torchvq::detail
