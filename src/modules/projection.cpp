#include "modules/projection.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

#include <torchvq/functional/decode.h>
#include <torchvq/functional/layout.h>

namespace torchvq::detail {

namespace F = functional;

namespace {

/// Tokens in the dtype of a weight, or in a dtype that autocast can convert.
at::Tensor for_weight(const at::Tensor& weight, const at::Tensor& tokens) {
  const auto dtype = weight.scalar_type();
  // The meta device has no autocast, and asking for it is an error.
  const bool autocast =
      !tokens.is_meta() && at::autocast::is_autocast_enabled(tokens.device().type());
  if (!autocast || dtype == at::kDouble) {
    return tokens.to(dtype);
  }
  return tokens.scalar_type() == at::kDouble ? tokens.to(at::kFloat) : tokens;
}

}  // namespace

at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens) {
  if (!layer) return tokens;
  return at::linear(for_weight(layer->weight, tokens), layer->weight, layer->bias);
}

at::Tensor apply_network(torch::nn::AnyModule& network, const at::Tensor& x) {
  if (x.is_floating_point()) {
    for (const auto& weight : network.ptr()->parameters()) {
      if (!weight.is_floating_point()) continue;
      return network.forward<at::Tensor>(for_weight(weight, x));
    }
  }
  return network.forward<at::Tensor>(x);
}

at::Tensor restore_output(const at::Tensor& codes, const at::Tensor& x,
                          const std::optional<at::Tensor>& mask, const Layout& layout,
                          const torch::nn::Linear& project_out,
                          const std::optional<at::Tensor>& padding) {
  auto output = apply_linear(project_out, codes).to(x.scalar_type());
  if (mask) output = F::fill_padding(output, *mask, padding);
  return layout.unpack(output, x);
}

at::ScalarType decoding_dtype(const torch::nn::Linear& project_out, const at::Tensor& rotation) {
  const bool wide = (project_out && project_out->weight.scalar_type() == at::kDouble) ||
                    (rotation.defined() && rotation.scalar_type() == at::kDouble);
  return wide ? at::kDouble : at::kFloat;
}

at::Tensor project_decoded(const torch::nn::Linear& project_out, const at::Tensor& codes,
                           const at::Tensor& indices, const HalfPrecision& module) {
  if (!project_out) return module.in_half_dtype(codes);
  // The bias would change the zeros of masked tokens.
  return F::zero_absent(apply_linear(project_out, codes), indices);
}

}  // namespace torchvq::detail
