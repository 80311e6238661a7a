// The order of batch, positions, features and heads in the tensors that a quantizer takes and
// returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/layout.h>

namespace torchvq {

struct VectorQuantizeOptions;

namespace detail {

/// The layout of one module: the expected form of inputs, and the mapping of heads to codebooks.
/// Internally, tokens are (H, T, D): one row of heads per codebook.
struct Layout {
  int64_t dim;
  int64_t heads = 1;
  bool separate = false;  ///< one codebook per head
  bool channel_first = false;
  int64_t map_rank = 0;  ///< of the input, if an option requires an image or a volume; otherwise 0
  std::string owner;     ///< the class that error messages name

  /// Throws c10::TypeError or c10::ValueError for an input that does not match; `name` is that of
  /// the argument.
  void check_input(const at::Tensor& x, const char* name = "x") const;
  /// (B, N) bool, true for real tokens.
  std::optional<at::Tensor> token_mask(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                                       const std::optional<at::Tensor>& lens) const;
  /// The same for modules that also take a mask with one value per item, (B,).
  std::optional<at::Tensor> mask_of_items(const at::Tensor& x,
                                          const std::optional<at::Tensor>& mask) const;
  /// x to (B, N, dim), with zeros where masked.
  at::Tensor pack(const at::Tensor& x, const std::optional<at::Tensor>& mask = std::nullopt) const;
  /// (B, N, dim), or (B, N, k, dim), to the layout of x.
  at::Tensor unpack(const at::Tensor& tokens, const at::Tensor& x) const;
  /// (B, N, heads * D) to (H, T, D).
  at::Tensor split_heads(const at::Tensor& tokens) const;
  /// (B, N) to (H, T).
  std::optional<at::Tensor> split_mask(const std::optional<at::Tensor>& mask) const;
  /// Indices in the shape that forward returns, to (H, T).
  at::Tensor split_indices(const at::Tensor& indices) const;
  /// (H, T, ...) to (B, N, heads, ...).
  at::Tensor merge_heads(const at::Tensor& values, int64_t batch, int64_t tokens) const;
  /// (H, T, D) to (B, N, heads * D).
  at::Tensor merge_features(const at::Tensor& values, int64_t batch, int64_t tokens) const;
  /// Values per token (H, T) or (H, T, k) in the layout of x; several heads on the last axis.
  at::Tensor restore_positions(const at::Tensor& values, const at::Tensor& x) const;
  /// Codes (H, T, D) of indices in the shape that forward returns: (B, *, heads * D).
  at::Tensor join_heads(const at::Tensor& codes, at::IntArrayRef indices) const;
  /// Values per token (B, N, ...) in the layout of x: (B, *, ...).
  at::Tensor unpack_positions(const at::Tensor& values, const at::Tensor& x) const;
  /// Values with the features last, to the place where this layout has them.
  at::Tensor place_features(const at::Tensor& values) const;
  /// The shape of the indices that forward returns for x: (B, *), or (B, *, heads).
  std::vector<int64_t> indices_shape(const at::Tensor& x) const;

 private:
  /// Batch and position axes of x.
  std::vector<int64_t> token_shape(const at::Tensor& x) const;
};

/// The part of the layout that functions need, and how padding is filled.
functional::TokenLayout token_layout(const VectorQuantizeOptions& options);

/// The layout of a VectorQuantize with these options.
Layout layout_of(const VectorQuantizeOptions& options, std::string owner);

}  // namespace detail
}  // namespace torchvq
