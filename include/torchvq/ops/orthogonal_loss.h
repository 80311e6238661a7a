// Orthogonal regularisation: makes codes point in different directions.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Mean squared cosine between the codes of a head, minus that of an orthonormal set.
///
/// Formula      n_i = c_i / max(|c_i|, 1e-12); loss = mean over heads of
///              sum over pairs i, j of M selected codes of (n_i.n_j)^2 / M^2 - 1 / M
/// Paper        Shin et al. 2021, arXiv:2112.00384
/// Parity       `orthogonal_reg_weight`, `_active_codes_only`, `_max_codes` of the reference, whose
///              active codes include those of masked tokens, and which has no active codes with
///              several heads
///
/// @param codebook   (H, K, D), floating point, any strides. K >= 1.
/// @param indices    (H, N), int64 in [-1, K): only codes that occur are selected; -1 is ignored.
///                   Default: all codes.
/// @param max_codes  at most this many of them, drawn with `rng`; at least 1. Heads with the same
///                   active codes draw the same subset. Default: no limit.
/// @param rng        (2,), int64: (seed, step). Needed with max_codes, unused without.
/// @return           (), float64 for a float64 codebook, else float32.
///
/// Gradient     to codebook in closed form, computed by the forward, so that the codebook may be
///              overwritten before backward; once differentiable.
/// Memory       O(K D): min(D, M)^2 products instead of M^2.
/// Empty        a head without selected codes adds 0 with zero gradient.
/// Precision    in float64, rounded once.
/// Determinism  the same selection on every device.
/// Throws       c10::ValueError for bad shapes, max_codes or a missing rng, c10::TypeError for bad
///              dtypes, c10::IndexError for indices outside [-1, K) (on CPU; other devices report
///              it their own way), c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor orthogonal_loss(const at::Tensor& codebook,
                                       const std::optional<at::Tensor>& indices = std::nullopt,
                                       std::optional<int64_t> max_codes = std::nullopt,
                                       const std::optional<at::Tensor>& rng = std::nullopt);

/// The leaf operator behind orthogonal_loss(): loss, and gradient to codebook for an upstream
/// gradient of 1 (no elements unless `grad`), in the dtype of the loss.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor> orthogonal_loss_forward(
    const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
    std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng, bool grad);

}  // namespace torchvq::ops
