// Argument checks shared by the gradient estimators and the losses: tokens (H, N, D), codes of the
// same shape, codebooks (H, K, D), masks (H, N), indices (H, N).
#pragma once

#include <limits>
#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/checks.h"

namespace torchvq::detail {

inline void check_tokens(const char* op, const char* name, const at::Tensor& x) {
  check_floating(op, name, x);
  check_rank(op, name, x, 3, "(H, N, D)");
}

/// Checks two token tensors of the same shape; their dtypes may differ.
inline void check_same_tokens(const char* op, const char* a_name, const at::Tensor& a,
                              const char* b_name, const at::Tensor& b) {
  check_tokens(op, a_name, a);
  check_tokens(op, b_name, b);
  for (int64_t axis = 0; axis < 3; ++axis) {
    TORCH_CHECK_VALUE(a.sym_size(axis) == b.sym_size(axis), op, ": expected ", b_name,
                      " to have the shape of ", a_name, ", ", a.sym_sizes(), ", but got shape ",
                      b.sym_sizes());
  }
  check_same_device(op, a_name, a, b_name, b);
}

inline void check_codebook(const char* op, const at::Tensor& codebook) {
  check_floating(op, "codebook", codebook);
  check_rank(op, "codebook", codebook, 3, "(H, K, D)");
  TORCH_CHECK_VALUE(codebook.sym_size(1) >= 1, op,
                    ": expected codebook to have at least 1 code, but got shape ",
                    codebook.sym_sizes());
}

inline void check_codebook_of(const char* op, const at::Tensor& codebook, const at::Tensor& x) {
  check_codebook(op, codebook);
  check_size(op, "codebook", codebook, 0, x.sym_size(0), "heads of x");
  check_size(op, "codebook", codebook, 2, x.sym_size(2), "features of x");
  check_same_device(op, "x", x, "codebook", codebook);
}

/// Checks a codebook: (H, K, D) for separate heads, or (1, K, D) or (K, D) shared by all `heads`.
inline void check_codebook_of_heads(const char* op, const at::Tensor& codebook,
                                    const c10::SymInt& heads, const char* meaning) {
  check_floating(op, "codebook", codebook);
  TORCH_CHECK_VALUE(codebook.dim() == 2 || codebook.dim() == 3, op,
                    ": expected codebook to have 2 or 3 dimensions (K, D) or (H, K, D), but got "
                    "shape ",
                    codebook.sym_sizes());
  TORCH_CHECK_VALUE(codebook.sym_size(-2) >= 1, op,
                    ": expected codebook to have at least 1 code, but got shape ",
                    codebook.sym_sizes());
  if (codebook.dim() == 3 && codebook.sym_size(0) != 1) {
    check_size(op, "codebook", codebook, 0, heads, meaning);
  }
}

/// Checks a tensor with one value per token of x.
inline void check_per_token(const char* op, const char* name, const at::Tensor& tensor,
                            at::ScalarType dtype, const at::Tensor& x) {
  check_dtype(op, name, tensor, dtype);
  check_rank(op, name, tensor, 2, "(H, N)");
  check_size(op, name, tensor, 0, x.sym_size(0), "heads of x");
  check_size(op, name, tensor, 1, x.sym_size(1), "tokens of x");
  check_same_device(op, "x", x, name, tensor);
}

inline void check_mask(const char* op, const std::optional<at::Tensor>& mask, const at::Tensor& x) {
  if (mask.has_value()) check_per_token(op, "mask", *mask, at::kBool, x);
}

/// Checks how many codes to return for each token.
inline void check_topk(const char* op, const std::optional<int64_t>& topk,
                       const at::Tensor& codebook) {
  if (!topk) return;
  TORCH_CHECK_VALUE(*topk >= 1 && codebook.sym_size(-2) >= *topk, op,
                    ": expected topk to be in [1, ", codebook.sym_size(-2), "], but got ", *topk);
}

/// Rejects NaN, negative and infinite values.
inline void check_non_negative(const char* op, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value <= std::numeric_limits<double>::max(), op, ": expected ",
                    name, " to be finite and non-negative, but got ", value);
}

/// Rejects a number that is infinite in the dtype of a computation, float32 at least.
inline void check_fits(const char* op, const char* name, double value, at::ScalarType dtype) {
  const double most =
      dtype == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  TORCH_CHECK_VALUE(value <= most, op, ": expected ", name, " to be at most ", most,
                    " (the largest number of the computation), but got ", value);
}

/// Rejects NaN, negative and infinite values, and zero.
inline void check_positive(const char* op, const char* name, double value) {
  TORCH_CHECK_VALUE(value > 0 && value <= std::numeric_limits<double>::max(), op, ": expected ",
                    name, " to be finite and positive, but got ", value);
}

}  // namespace torchvq::detail
