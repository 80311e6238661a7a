// Counts and exact sums of the tokens of each code, for moving averages, k-means and usage.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Counts tokens per code, and adds them up in fixed point: integer sums do not depend on the
/// order.
///
/// Formula      counts[h, k] = number of tokens n with indices[h, n] = k;
///              sums[0, h, k] = sum over these of round(x[h, n] * 2^(30 - e)), ties to even, e =
///              exponents[h, k]; for float64 tokens sums[1] holds the rounded remainders times 2^32
/// Paper        Demmel, Nguyen 2015, Parallel reproducible summation (order-free sums)
///
/// The returned exponents are those of the sums: exponents[h, k], unless the largest element of the
/// code's tokens has an exponent above exponents[h, k] + 8, which is then used instead. Ranks with
/// parts of a batch take the largest of their exponents, and call again if it is larger than their
/// own.
///
/// @param x          (H, N, D), floating point, any strides. D >= 1.
/// @param indices    (H, N), int64; -1 marks a token that is left out.
/// @param exponents  (H, K), int32, from code_exponents().
/// @param mask       (H, N) or (N,), bool, true for real tokens. Default: all.
/// @return           counts (H, K), int64; sums (W, H, K, D), int64, with W = 2 for float64 tokens
///                   and 1 otherwise; exponents (H, K), int32. decode_sums() turns sums into
///                   floating point.
///
/// Gradient     none.
/// Empty        N == 0 gives zeros.
/// Non-finite   a row with NaN, infinity or a magnitude above 2^998 (3e300) is neither counted nor
///              added, and does not raise an exponent.
/// Precision    error per token at most 2^(e - 31), for float64 tokens 2^(e - 63).
///              No overflow for up to 2^25 tokens with any data, or 2^33 if no token exceeds its
///              exponent.
/// Determinism  the same bits for any order of tokens, thread count, instruction set, device, and
///              any split of a batch whose parts use the same exponents and are added up.
/// Throws       c10::IndexError for an index of a real token outside [-1, K) (on CPU; other devices
///              report it their own way), c10::ValueError for bad shapes, c10::TypeError for bad
///              dtypes.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor, at::Tensor> code_statistics(
    const at::Tensor& x, const at::Tensor& indices, const at::Tensor& exponents,
    const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
