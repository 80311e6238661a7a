// Random choice of codes.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Draws a code for every token, with probability softmax(scores / temperature); with topk, that
/// many different codes, one after the other, each among those that are left.
///
/// Formula      l[n, k] = -|x_n - c_k| (euclidean) or the cosine of x_n and c_k (cosine);
///              index[n] = argmin over k of e[n, k] / exp(l[n, k] / temperature), e = -log(u):
///              exponential random numbers, which is the Gumbel maximum without its second
///              logarithm. With topk the smallest in ascending order, which are draws without
///              replacement.
/// Paper        Gumbel 1954; Jang et al. 2017, arXiv:1611.01144; Lee et al. 2022, arXiv:2203.01941;
///              topk: Kool et al. 2019, arXiv:1903.06059
/// Parity       `stochastic_sample_codes`, `sample_codebook_temp` of the reference in training;
///              other draws
///
/// @param x            (H, N, D), floating point, any strides.
/// @param codebook     (H, K, D), floating point; its dtype may differ from that of x. K >= 1.
/// @param rng          (2,), int64: (seed, step).
/// @param temperature  divides the scores; finite and non-negative. 0, and anything below 1e-290, means
///                     the best score.
/// @param metric       "euclidean" or "cosine"; for cosine both sides are made unit vectors here.
/// @param stream       separates draws of one step, for example ranks or levels. Default: 0.
/// @param topk         the number of codes, in [1, K], on a trailing axis in the order of the
///                     draws; the first is the code without topk. Default: one code, no such axis.
/// @return             (H, N), or (H, N, topk); int64.
///
/// Gradient     none; see gumbel_straight_through().
/// Ties         lowest index wins.
/// Memory       O(N D + K D): scores exist for a block of tokens at a time.
/// Empty        N == 0 gives an empty result.
/// Non-finite   a token with NaN or infinity gets index 0 (with topk: 0 .. topk - 1). A code with
///              a NaN or infinity is drawn after all others, such codes by index.
/// Precision    scores in float64.
/// Determinism  draw (h, n, k) depends only on rng, stream and its row-major position, on every
///              device; scores of two devices may differ in the last bits of float64.
/// Throws       c10::ValueError for bad shapes, temperature, metric or topk, c10::TypeError for
///              bad dtypes.
TORCHVQ_API at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& rng, double temperature,
                                    c10::string_view metric, int64_t stream = 0,
                                    std::optional<int64_t> topk = std::nullopt);

}  // namespace torchvq::ops
