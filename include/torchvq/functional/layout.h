// Layout: conversion between the layouts of networks and tokens.
//
// A quantizer sees tokens (B, N, D) and, inside, (H, T, D) with one row of heads per codebook.
// Only these composites handle images, channel-first sequences and heads. All are views or copies:
// the gradient is that of a permutation.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Flattens the positions of a batch.
///
/// @param x              (B, D), or (B, *, D) with any number of position axes; with
///                       `channel_first` (B, D, *). A (B, D) input is one token per batch item.
/// @return               (B, N, D), N the product of the position axes.
/// Throws                c10::ValueError when x has fewer than 2 dimensions.
TORCHVQ_API at::Tensor pack_tokens(const at::Tensor& x, bool channel_first = false);

/// The inverse of pack_tokens for a result (B, N, D') or candidates (B, N, k, D') of its input x.
/// Candidates come out as (B, *, k, D'), channel-first as (B, D', *, k). A channel-first result
/// is a view, of strides as in channels_last; on CPU a contiguous copy if it requires a gradient
/// and x is contiguous, because the gradient of a copy comes back by one, faster than by torch.
TORCHVQ_API at::Tensor unpack_tokens(const at::Tensor& tokens, const at::Tensor& x,
                                     bool channel_first = false);

/// Gives per-token values (B, N, ...) the position axes of the packed input: (B, *, ...).
/// For a (B, D) input the token axis disappears.
TORCHVQ_API at::Tensor unpack_positions(const at::Tensor& values, c10::SymIntArrayRef sizes,
                                        bool channel_first = false);

/// Splits the feature axis over heads.
///
/// @param tokens    (B, N, heads * D).
/// @param separate  one codebook per head, so heads become the first axis: (heads, B*N, D);
///                  otherwise all heads share one codebook and join the tokens: (1, B*N*heads, D).
TORCHVQ_API at::Tensor split_heads(const at::Tensor& tokens, int64_t heads, bool separate);

/// The inverse of split_heads for values (H, T, ...): (B, N, heads, ...), B = `batch`, N =
/// `tokens`.
TORCHVQ_API at::Tensor merge_heads(const at::Tensor& values, c10::SymInt batch, c10::SymInt tokens,
                                   int64_t heads, bool separate);

/// Brings a token mask (B, N) to the shape (H, T) of split_heads.
TORCHVQ_API at::Tensor split_mask(const at::Tensor& mask, int64_t heads, bool separate);

/// Brings indices in the shape that a forward returns, (B, *) or with several heads (B, *, heads),
/// to (H, T).
TORCHVQ_API at::Tensor split_indices(const at::Tensor& indices, int64_t heads, bool separate);

/// Sets masked tokens (B, N, D) to zero, so that their contents, even NaN, reach no value or
/// gradient.
TORCHVQ_API at::Tensor fill_masked(const at::Tensor& tokens, const at::Tensor& mask);

/// Replaces masked tokens of an output (B, N, D) or (B, N, k, D) by `padding` (B, N, D), or zeros.
TORCHVQ_API at::Tensor fill_padding(const at::Tensor& output, const at::Tensor& mask,
                                    const std::optional<at::Tensor>& padding = std::nullopt);

/// Token mask from lengths: mask[b, n] = n < lens[b].
///
/// @param lens    (B,), integer, on the device of the input.
/// @param length  N, the number of positions.
/// @return        (B, N), bool.
TORCHVQ_API at::Tensor lens_to_mask(const at::Tensor& lens, c10::SymInt length);

/// The order of features and heads in inputs and outputs of a forward.
struct TokenLayout {
  /// Codes per token; the features are split over them. Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// One codebook per head instead of one for all. Default: false.
  TORCH_ARG(bool, separate) = false;
  /// The features of x are on axis 1 instead of the last. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Masked tokens give zeros instead of themselves. Default: true.
  TORCH_ARG(bool, zeros_for_masked) = true;
};

/// The input of a search.
struct SplitTokens {
  at::Tensor packed;               ///< (B, N, heads * D), as they came
  at::Tensor filled;               ///< the same with zeros for masked tokens
  at::Tensor tokens;               ///< (H, T, D), with zeros for masked tokens
  std::optional<at::Tensor> mask;  ///< (H, T), bool
};

/// From an input (B, *, heads * D), or as the layout says, and a mask (B, N) of its tokens.
TORCHVQ_API SplitTokens split_tokens(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                                     const TokenLayout& layout);

/// Codes (H, T, D), or of candidates (H, T, k, D), in layout and dtype of x; padding as the layout
/// says.
TORCHVQ_API at::Tensor restore_tokens(const at::Tensor& codes, const at::Tensor& x,
                                      const std::optional<at::Tensor>& mask,
                                      const TokenLayout& layout);

/// Values per token (H, T), or of candidates (H, T, k), as the positions of x: (B, *), with several
/// heads (B, *, heads), with candidates (B, *, k).
TORCHVQ_API at::Tensor restore_positions(const at::Tensor& values, const at::Tensor& x,
                                         const TokenLayout& layout);

}  // namespace torchvq::functional
