#include "modules/residual_evaluation.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/residual_encode.h>

namespace torchvq::detail {

namespace {

bool have_gradient(at::TensorList codebooks) {
  return at::GradMode::is_enabled() &&
         std::any_of(codebooks.begin(), codebooks.end(),
                     [](const at::Tensor& codebook) { return codebook.requires_grad(); });
}

/// Level by level, because residual_encode() has no gradient.
Encoded encode_differentiably(const at::Tensor& x, at::TensorList codebooks,
                              const std::string& metric, const std::optional<at::Tensor>& mask) {
  const auto options = ops::NearestCodeOptions().metric(metric).return_codes(true);
  auto residual = x;
  at::Tensor total;
  std::vector<at::Tensor> indices;
  for (const auto& codebook : codebooks) {
    const auto nearest = ops::nearest_code(residual, codebook, options);
    total = total.defined() ? total.add(nearest.codes) : nearest.codes;
    residual = residual.sub(nearest.codes.detach());
    indices.push_back(nearest.indices);
  }
  auto chosen = at::stack(indices, -1);
  if (mask) {
    chosen = chosen.masked_fill(mask->logical_not().unsqueeze(-1), -1);
  }
  return {total, chosen};
}

}  // namespace

Encoded encode_levels(const at::Tensor& x, at::TensorList codebooks, const std::string& metric,
                      const std::optional<at::Tensor>& mask) {
  if (have_gradient(codebooks)) {
    return encode_differentiably(x, codebooks, metric, mask);
  }
  const auto options = ops::ResidualEncodeOptions().metric(metric).mask(mask);
  const auto found = ops::residual_encode(x, codebooks, options);
  return {found.quantized, found.indices};
}

}  // namespace torchvq::detail
