// refine_codebooks() for tokens in memory, with several heads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/refine_codebooks.h>

namespace torchvq::functional {

struct RefinedHeads {
  std::vector<at::Tensor> codebooks;  ///< for each level (H, K_n, D), with their original dtypes
  std::vector<RefineCodebooksOutput> heads;
};

/// @param x          (H, T, D), floating point; rows that are not finite are ignored.
/// @param codebooks  Q of (H, K_n, D), floating point.
/// @param mask       (H, T) or (T,), bool, true for real tokens.
/// @param group_name see Shard::group_name.
RefinedHeads refine_heads(const at::Tensor& x, at::TensorList codebooks,
                          const std::optional<at::Tensor>& mask,
                          const RefineCodebooksOptions& options, const std::string& group_name);

}  // namespace torchvq::functional
