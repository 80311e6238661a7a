// Argument checks of ema_update_, called by every kernel, and of ema_update_tokens_.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The arguments of the operator besides the state tensors.
struct EmaUpdateArguments {
  const at::Tensor& counts;
  const at::Tensor& sums;
  const at::Tensor& exponents;
  double decay;
  double eps;
  std::string_view metric;
  const std::optional<at::Tensor>& weight;
};

/// Checks a factor of 1 - decay that broadcasts to (H, K).
void check_weight(const char* op, const at::Tensor& weight, const at::Tensor& cluster_size);

/// Reads the weight, so only for weights on the CPU.
void check_finite_weight(const char* op, const at::Tensor& weight);

/// Returns whether the metric is cosine.
bool check_ema_update_(const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                       const at::Tensor& embed, const EmaUpdateArguments& arguments);

}  // namespace torchvq::detail
