// The values that the stages of a forward of VectorQuantize, or of a level of a stack, pass on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::detail {

/// The arguments of one forward; the module's options fill in those not given.
struct Request {
  std::optional<at::Tensor> targets;  ///< in the shape of forward's indices
  std::optional<at::Tensor> mask;     ///< (B, N)
  std::optional<int64_t> topk;
  double temperature = 1;
  bool frozen = false;
  std::function<at::Tensor(at::Tensor)> transform;
  bool ema_update = true;
  bool accumulate = false;
  std::optional<at::Tensor> weight;
  distributed::Ranks ranks;
};

/// The result of a search: the output, and the inputs of losses and learning.
struct SearchResult {
  at::Tensor quantized;  ///< (H, T, D), or (H, T, k, D), with the estimator's gradient
  functional::SearchedTokens searched;
  at::Tensor tokens;  ///< (B, N, dim), before the projection
};

}  // namespace torchvq::detail
