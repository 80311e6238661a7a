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
///              bits. A code's sums are computed where they are used: apart from the state, nothing
///              of size (H, K, D) is written.
///
/// @param cluster_size, embed_avg, embed  the state of each codebook, changed in place, as in ema_update_().
/// @param x, indices                      the tokens of each codebook, as in code_statistics().
/// @param mask                            one for each codebook, or none: every token counts.
/// @return                                counts (H, K), int64, of each codebook.
///
/// Gradient     none; autograd is told that the state changed.
/// Empty        a head without a token that counts does not change.
/// Throws       as these two operators. No codebook is changed when an error is thrown.
TORCHVQ_API std::vector<at::Tensor> ema_update_tokens_(
    at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed, at::TensorList x,
    at::TensorList indices, at::TensorList mask = {}, const EmaUpdateOptions& options = {});

}  // namespace torchvq::ops
