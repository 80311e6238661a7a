#include "functional/taught_tokens.h"

#include <optional>

#include <ATen/ops/cat.h>

namespace torchvq::functional {

TaughtTokens no_tokens(const TaughtTokens& like) {
  const auto none = [](const at::Tensor& tensor) { return tensor.slice(1, 0, 0); };
  return {none(like.x), none(like.indices),
          like.mask ? std::optional(none(*like.mask)) : std::nullopt};
}

TaughtTokens joined_tokens(const std::vector<TaughtTokens>& levels) {
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
