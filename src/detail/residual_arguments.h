// Checks and dtypes that the operators on residual stacks share.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/token_checks.h"

namespace torchvq::detail {

/// x (H, T, D) and at least one codebook (H, K, D), (1, K, D) or (K, D); depth one int64.
inline void check_residual_arguments(const char* op, const at::Tensor& x, at::TensorList codebooks,
                                     const std::optional<at::Tensor>& depth,
                                     const std::optional<at::Tensor>& mask) {
  check_tokens(op, "x", x);
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1, op, ": expected x to have at least 1 dim, but got shape ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(!codebooks.empty(), op,
                    ": expected codebooks to have at least 1 level, but got none");
  for (const auto& codebook : codebooks) {
    check_codebook_of_heads(op, codebook, x.sym_size(0), "heads of x");
    check_size(op, "codebook", codebook, -1, x.sym_size(2), "features of x");
    check_same_device(op, "x", x, "codebook", codebook);
    // Kernels use 32-bit numbers for codes and for their places in padded panels.
    TORCH_CHECK_VALUE(codebook.sym_size(-2) <= (int64_t{1} << 30), op,
                      ": expected codebooks to have at most 2^30 codes, but got shape ",
                      codebook.sym_sizes());
  }
  check_mask(op, mask, x);
  if (!depth) return;
  check_dtype(op, "depth", *depth, at::kLong);
  TORCH_CHECK_VALUE(depth->sym_numel() == 1, op,
                    ": expected depth to be one number, but got shape ", depth->sym_sizes());
}

/// Whether all heads search the same codes.
inline bool is_shared(const at::Tensor& codebook) {
  return codebook.dim() == 2 || codebook.size(0) == 1;
}

/// Expands (K, D) or (1, K, D) to a codebook (H, K, D).
inline at::Tensor expand_to_heads(const at::Tensor& codebook, int64_t heads) {
  if (codebook.dim() == 3 && codebook.size(0) == heads) return codebook;
  return codebook.expand({heads, codebook.size(-2), codebook.size(-1)});
}

/// `tensor` in `dtype` and contiguous. Skips `to` where possible: most codebooks need no
/// conversion, and a stack has many.
inline at::Tensor contiguous_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor.contiguous() : tensor.to(dtype).contiguous();
}

/// float64 if x or a codebook is float64, otherwise float32.
inline at::ScalarType residual_dtype(const at::Tensor& x, at::TensorList codebooks) {
  bool wide = x.scalar_type() == at::kDouble;
  for (const auto& codebook : codebooks) wide |= codebook.scalar_type() == at::kDouble;
  return wide ? at::kDouble : at::kFloat;
}

/// The number of levels in use. Reading the depth waits for its device.
inline int64_t levels_in_use(const char* op, const std::optional<at::Tensor>& depth,
                             int64_t levels) {
  if (!depth) return levels;
  const auto used = depth->item<int64_t>();
  TORCH_CHECK_VALUE(used >= 1 && used <= levels, op, ": expected depth to be in [1, ", levels,
                    "], but got ", used);
  return used;
}

}  // namespace torchvq::detail
