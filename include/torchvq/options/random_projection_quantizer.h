// Options of RandomProjectionQuantizer. The names, meanings and defaults are those of the Python
// class.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a RandomProjectionQuantizer module.
///
/// Example:
/// ```
/// torchvq::RandomProjectionQuantizer targets(
///     torchvq::RandomProjectionQuantizerOptions(512, 1024, 256).num_codebooks(16));
/// ```
struct TORCHVQ_API RandomProjectionQuantizerOptions {
  /// @param dim            features of the input, at least 1.
  /// @param codebook_size  codes of a codebook K, at least 1.
  /// @param codebook_dim   features of a projection, and of a code if there is one codebook; at
  ///                       least 1.
  RandomProjectionQuantizerOptions(int64_t dim, int64_t codebook_size, int64_t codebook_dim)
      : dim_(dim), codebook_size_(codebook_size), codebook_dim_(codebook_dim) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Features of the input.
  TORCH_ARG(int64_t, dim);
  /// Codes of a codebook K.
  TORCH_ARG(int64_t, codebook_size);
  /// Features of a projection.
  TORCH_ARG(int64_t, codebook_dim);
  /// Codebooks C, at least 1. Each has its own projection; with several, one random layer maps the
  /// projections to codes of C * codebook_dim features. Default: 1.
  TORCH_ARG(int64_t, num_codebooks) = 1;
  /// Normalise each token (layer norm without weights) before it is projected. Default: true.
  TORCH_ARG(bool, norm) = true;
  /// Features on the last axis; otherwise on axis 1. Default: true.
  TORCH_ARG(bool, channel_last) = true;
  /// Input is (B, dim, H, W). Default: false.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Input is (B, dim, T, H, W). Default: false.
  TORCH_ARG(bool, accept_3d_fmap) = false;
  /// Behave as vector-quantize-pytorch: the layers of several codebooks have nonzero biases and
  /// require a gradient. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

/// Options of one call of RandomProjectionQuantizerImpl::forward.
struct TORCHVQ_API RandomProjectionQuantizerForwardOptions {
  /// Targets in the shape of the indices: the result is then the cross-entropy of the similarities
  /// with these targets; -1 is left out. Default: none.
  TORCH_ARG(std::optional<at::Tensor>, indices);
  /// (B, *), bool, true for real tokens. Default: all are.
  TORCH_ARG(std::optional<at::Tensor>, mask);
};

}  // namespace torchvq
