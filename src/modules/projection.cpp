#include "modules/projection.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

namespace torchvq::detail {

at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens) {
  return at::linear(for_weight(layer->weight, tokens), layer->weight, layer->bias);
}

at::Tensor for_weight(const at::Tensor& weight, const at::Tensor& tokens) {
  const auto dtype = weight.scalar_type();
  // The meta device knows no autocast, and asking raises.
  const bool autocast =
      !tokens.is_meta() && at::autocast::is_autocast_enabled(tokens.device().type());
  if (!autocast || dtype == at::kDouble) {
    return tokens.to(dtype);
  }
  return tokens.scalar_type() == at::kDouble ? tokens.to(at::kFloat) : tokens;
}

}  // namespace torchvq::detail
