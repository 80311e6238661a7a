// State of an EMA codebook: cluster_size (H, K), embed_avg (H, K, D), embed (H, K, D), all float32
// or all float64.
#pragma once

#include <ATen/core/Tensor.h>

#include "detail/checks.h"

namespace torchvq::detail {

inline void check_codebook_state(const char* op, const at::Tensor& cluster_size,
                                 const at::Tensor& embed_avg, const at::Tensor& embed) {
  const auto dtype = embed.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected embed to be float32 or float64 (codebook state is never half "
                   "precision), but got ",
                   dtype);
  check_dtype(op, "cluster_size", cluster_size, dtype);
  check_dtype(op, "embed_avg", embed_avg, dtype);
  check_rank(op, "embed", embed, 3, "(H, K, D)");
  check_rank(op, "embed_avg", embed_avg, 3, "(H, K, D)");
  check_rank(op, "cluster_size", cluster_size, 2, "(H, K)");
  TORCH_CHECK_VALUE(embed.sym_size(1) >= 1 && embed.sym_size(2) >= 1, op,
                    ": expected embed to have at least 1 code and 1 dimension, but got shape ",
                    embed.sym_sizes());
  for (int64_t axis = 0; axis < 3; ++axis) {
    const char* meaning = axis == 0   ? "heads of embed"
                          : axis == 1 ? "codes of embed"
                                      : "dimensions of embed";
    check_size(op, "embed_avg", embed_avg, axis, embed.sym_size(axis), meaning);
    if (axis < 2) check_size(op, "cluster_size", cluster_size, axis, embed.sym_size(axis), meaning);
  }
  check_no_overlap(op, "embed", embed);
  check_no_overlap(op, "embed_avg", embed_avg);
  check_no_overlap(op, "cluster_size", cluster_size);
  check_same_device(op, "embed", embed, "embed_avg", embed_avg);
  check_same_device(op, "embed", embed, "cluster_size", cluster_size);
}

inline void check_decay(const char* op, double decay) {
  TORCH_CHECK_VALUE(decay >= 0 && decay <= 1, op, ": expected decay to be in [0, 1], but got ",
                    decay);
}

}  // namespace torchvq::detail
