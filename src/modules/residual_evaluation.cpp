#include "modules/residual_evaluation.h"

#include <vector>

#include <ATen/ops/stack.h>

#include <torchvq/ops/nearest_code.h>

namespace torchvq::detail {

Encoded encode_levels(const at::Tensor& x, at::TensorList codebooks, const std::string& metric,
                      const std::optional<at::Tensor>& mask) {
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

}  // namespace torchvq::detail
