// Masks of tokens: (H, N), or (N,) for all heads; true marks a real token.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "detail/checks.h"

namespace torchvq::detail {

/// Throws unless `mask` is absent or fits tokens of shape (H, N, D).
inline void check_token_mask(const char* op, const std::optional<at::Tensor>& mask,
                             const at::Tensor& x) {
  if (!mask.has_value()) return;
  check_dtype(op, "mask", *mask, at::kBool);
  const bool per_head = mask->dim() == 2;
  TORCH_CHECK_VALUE(per_head || mask->dim() == 1, op,
                    ": expected mask to have shape (H, N) or (N,), but got shape ",
                    mask->sym_sizes());
  if (per_head) check_size(op, "mask", *mask, 0, x.sym_size(0), "heads of x");
  check_size(op, "mask", *mask, per_head ? 1 : 0, x.sym_size(1), "tokens of x");
  check_same_device(op, "x", x, "mask", *mask);
}

/// The number of real tokens before each token: masked tokens draw no random numbers.
inline std::vector<int64_t> token_numbers(const bool* mask, int64_t tokens) {
  std::vector<int64_t> numbers(static_cast<size_t>(tokens));
  int64_t count = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    numbers[static_cast<size_t>(i)] = count;
    count += mask == nullptr || mask[i] ? 1 : 0;
  }
  return numbers;
}

}  // namespace torchvq::detail
