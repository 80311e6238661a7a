// The entropy loss of lookup-free quantization, without a list of the codes.
#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Entropies of soft sign codes: of single tokens, and of the mean distribution over tokens.
///
/// Formula      q[n, d] = sigmoid(sharpness * x[n, d]), the probability that bit d is set;
///              p[n, k] = product over d of q or 1 - q, by bit d of k;
///              per_sample = mean over n of H(p[n]) = mean over n of sum_d H(q[n, d]);
///              batch = H(P), P = mean over n of p[n]; both averaged over heads.
///              This is the softmax over all codes c of 2 t <x, c>, c in {-s, s}^D, with sharpness
///              = 4 t s.
/// Paper        Yu et al. 2023, arXiv:2310.05737, equation 6; Zhao et al. 2024, arXiv:2406.07548
/// Algorithm    bits split in halves A and B; p[n] is the outer product of a[n] and b[n], so P is
///              A^T B / N: N * 2^D products, but 2^D + N * 2^(D/2) numbers in memory
/// Parity       the entropies of LFQ in the reference, whose logarithm is clamped at 1e-5
///
/// @param x          (H, N, D), floating point, any strides; D in [1, 62].
/// @param sharpness  finite in the dtype of the computation, and non-negative.
/// @param mask       (H, N) or (N,), bool; True marks a real token. Padding may hold anything.
/// @param totals     the sum over ranks of sign_entropy_totals(): means are then over the tokens of
///                   all ranks. Default: those of this process.
/// @return           per_sample (), batch (): float64 for float64 x, otherwise float32.
///
/// More than 24 bits are split into the fewest groups of nearly equal size with at most 24 bits
/// each; batch is then the sum of the entropies of the groups (the grouped form of BSQ), which is
/// at least the joint entropy, and equal to it if groups are independent.
///
/// Gradient     to x in closed form, computed by the forward; once differentiable.
/// Ties         none: everything is smooth.
/// Empty        a head without tokens, or all masked, adds 0 with zero gradient.
/// Non-finite   an unmasked NaN makes both entropies NaN; infinity is a certain bit.
/// Precision    float32 (float64 for float64 x); logits beyond 87 (700) count as certain; entropies
///              are added in float64.
/// Determinism  float32 on CPU: the same bits for any instruction set and number of threads.
/// Distributed  with totals of W ranks every rank has the entropies of one process with the whole
///              batch, and W times that process's gradient of its own tokens, which data-parallel
///              wrappers average. Backward communicates nothing.
/// Throws       c10::ValueError for bad shapes and sharpness, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> sign_entropy(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask = std::nullopt,
    const std::optional<at::Tensor>& totals = std::nullopt);

/// The numbers that ranks add up to share the entropies: per head the sums of p over the unmasked
/// tokens (one number per code of each group), the sum of their entropies, their number, and 1. No
/// gradient.
///
/// @return  (H, sum over groups of 2^bits + 3), float64 for float64 x, otherwise float32.
TORCHVQ_API at::Tensor sign_entropy_totals(const at::Tensor& x, double sharpness,
                                           const std::optional<at::Tensor>& mask = std::nullopt);

/// The leaf operator behind sign_entropy(): both entropies and their gradients to x for an upstream
/// gradient of 1, in the dtype of the entropies; gradients have no elements unless `wanted`.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals, bool wanted);

}  // namespace torchvq::ops
