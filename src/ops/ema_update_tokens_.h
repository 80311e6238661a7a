// Argument checks of ema_update_tokens_, called by every kernel.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The arguments of the operator that are checked.
struct EmaUpdateTokensArguments {
  at::TensorList cluster_size;
  at::TensorList embed_avg;
  at::TensorList embed;
  at::TensorList counts;
  at::TensorList x;
  at::TensorList indices;
  at::TensorList mask;
  double decay;
  double eps;
  std::string_view metric;
  const std::optional<at::Tensor>& weight;

  /// The mask of one codebook.
  std::optional<at::Tensor> mask_of(size_t codebook) const {
    return mask.empty() ? std::nullopt : std::optional(mask[codebook]);
  }
};

/// Returns whether the metric is cosine.
bool check_ema_update_tokens_(const EmaUpdateTokensArguments& arguments);

}  // namespace torchvq::detail
