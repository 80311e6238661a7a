// What the stages of one forward of VectorQuantize hand to each other.
#pragma once

#include <optional>

#include <torchvq/modules/vector_quantize.h>

namespace torchvq {

/// What one forward was asked for, with the module's options filled in.
struct VectorQuantizeImpl::Call {
  const VectorQuantizeForwardOptions& options;
  std::optional<torch::Tensor> mask;  ///< (B, N)
  std::optional<int64_t> topk;
  double temperature;
  bool frozen;
  bool ema_update;
};

/// What the search compared, and what it chose.
struct VectorQuantizeImpl::Chosen {
  torch::Tensor tokens;               ///< (B, N, dim), before the projection
  torch::Tensor table;                ///< codes searched: (H, K, D), or of each token (H, T, K, D)
  std::optional<torch::Tensor> mask;  ///< (H, T)
  torch::Tensor inputs;               ///< (H, T, D), what was compared with the codes
  torch::Tensor codes;                ///< (H, T, D), or (H, T, k, D)
  torch::Tensor indices;              ///< (H, T), or (H, T, k)
};

}  // namespace torchvq
