#include "functional/step_tokens.h"

#include <optional>

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace torchvq::functional {

std::vector<StepTokens> step_tokens(const char* op, at::TensorList x, at::TensorList indices,
                                    at::TensorList mask, size_t codebooks) {
  TORCH_CHECK_VALUE(x.size() == indices.size() && (mask.empty() || mask.size() == x.size()), op,
                    ": expected indices, and mask where there is one, for each of ", x.size(),
                    " levels, but got ", indices.size(), " and ", mask.size());
  TORCH_CHECK_VALUE(!x.empty() && x.size() <= codebooks, op, ": expected at least 1 and at most ",
                    codebooks, " levels (codebooks), but got ", x.size());
  std::vector<StepTokens> tokens;
  for (size_t i = 0; i < x.size(); ++i) {
    tokens.push_back({x[i], indices[i], mask.empty() ? std::nullopt : std::optional(mask[i])});
  }
  return tokens;
}

StepTokens no_tokens(const StepTokens& like) {
  const auto none = [](const at::Tensor& tensor) { return tensor.slice(1, 0, 0); };
  return {none(like.x), none(like.indices),
          like.mask ? std::optional(none(*like.mask)) : std::nullopt};
}

StepTokens joined_tokens(const std::vector<StepTokens>& levels) {
  std::vector<at::Tensor> x, indices, masks;
  for (const auto& level : levels) {
    x.push_back(level.x);
    indices.push_back(level.indices);
    if (level.mask) masks.push_back(*level.mask);
  }
  return {at::cat(x, 1), at::cat(indices, 1),
          masks.empty() ? std::nullopt : std::optional(at::cat(masks, 1))};
}

}  // namespace torchvq::functional
