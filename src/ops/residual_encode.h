// Shared by all kernels of residual_encode: argument checks and the common form for computation.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

using ResidualEncodeTensors = std::tuple<at::Tensor, at::Tensor>;

void check_residual_encode(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                           const std::optional<at::Tensor>& depth,
                           const std::optional<at::Tensor>& mask,
                           std::optional<at::TensorList> prepared);

/// Checked arguments in the dtype of the computation. If all codebooks are shared by the heads, the
/// tokens of all heads are treated as those of one head.
struct ResidualEncodeProblem {
  ResidualEncodeProblem(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                        const std::optional<at::Tensor>& depth,
                        const std::optional<at::Tensor>& mask,
                        std::optional<at::TensorList> prepared);

  /// The results (H, T, ...) for all heads of the original x.
  ResidualEncodeTensors of_all_heads(const at::Tensor& quantized, const at::Tensor& indices) const;

  at::Tensor x;                       ///< (H, T, D), contiguous
  std::vector<at::Tensor> codebooks;  ///< levels in use: (H, K, D), or (K, D) for 1 head
  std::vector<at::Tensor> prepared;   ///< for each of them (bytes,) or (H, bytes), or empty
  at::Tensor mask;                    ///< (H, T), contiguous, or undefined
  bool cosine = false;
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t levels = 0;  ///< number of levels in all; codebooks.size() are in use

 private:
  int64_t given_heads_ = 0, given_tokens_ = 0;
};

}  // namespace torchvq::detail
