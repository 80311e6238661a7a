// What the stages of one forward of VectorQuantize, or of one level of a stack, hand to each other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::detail {

/// What one forward was asked for, with the module's options in the place of those left open.
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

/// What a search leaves: the output, and what losses and learning need.
struct SearchResult {
  at::Tensor quantized;  ///< (H, T, D), or (H, T, k, D), with the estimator's gradient
  functional::SearchedTokens searched;
  at::Tensor tokens;    ///< (B, N, dim), before the projection
  at::Tensor in_place;  ///< the loss of the codebook's own optimizer; undefined without
};

}  // namespace torchvq::detail
