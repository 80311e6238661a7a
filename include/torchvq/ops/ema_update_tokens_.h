// code_statistics() and ema_update_() of one process in one pass, without sums of all codes.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/ops/ema_update_.h>

namespace torchvq::ops {

/// Updates the moving averages of codebooks with the tokens of their codes, and the codes from the averages.
///
/// Formula      for each codebook: counts, sums, exponents = code_statistics(x, indices, code_exponents(embed),
///              mask); ema_update_(cluster_size, embed_avg, embed, counts, sums, exponents, options); the same
///              bits. A code's sums are made where they are used: nothing of size (H, K, D) but the state is
///              written.
///
/// @param cluster_size, embed_avg, embed  the state of each codebook, changed in place, as in ema_update_().
/// @param x, indices                      the tokens of each, as in code_statistics().
/// @param mask                            one for each, or none at all: every token counts.
/// @return                                counts (H, K), int64, of each.
///
/// Gradient     none; autograd is told that the state changed.
/// Empty        without a token, or with none that counts, a head stays as it is.
/// Throws       as the two. No codebook is changed when an error is thrown.
TORCHVQ_API std::vector<at::Tensor> ema_update_tokens_(
    at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed, at::TensorList x,
    at::TensorList indices, at::TensorList mask = {}, const EmaUpdateOptions& options = {});

}  // namespace torchvq::ops
