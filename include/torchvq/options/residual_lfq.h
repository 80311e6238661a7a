// Options of ResidualLFQ and GroupedResidualLFQ. The names, meanings and defaults are those of the
// Python classes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <torch/arg.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/lfq.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a ResidualLFQ module.
///
/// Example:
/// ```
/// torchvq::ResidualLFQ quantizer(torchvq::ResidualLFQOptions(256, 8, 256));
/// ```
struct TORCHVQ_API ResidualLFQOptions {
  /// @param dim             features of the input. If it differs from the bits of a code,
  ///                        project_in and project_out are linear layers.
  /// @param num_quantizers  Q, at least 1.
  /// @param codebook_size   codes per level, a power of 2 up to 2^62.
  ResidualLFQOptions(int64_t dim, int64_t num_quantizers, int64_t codebook_size)
      : dim_(dim), num_quantizers_(num_quantizers), codebook_size_(codebook_size) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Features of the input.
  TORCH_ARG(int64_t, dim);
  /// Number of quantizers Q.
  TORCH_ARG(int64_t, num_quantizers);
  /// Codes per level.
  TORCH_ARG(int64_t, codebook_size);
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, is_channel_first) = false;
  /// In training, use only a random number of the quantizers. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last quantizer that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// The number kept is a multiple of this, or all of them; at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;
  /// Bounds the latents of level n to +- value * 2^-n; at least 1. Default: none.
  TORCH_ARG(std::optional<double>, soft_clamp_input_value);
  /// Behave as vector-quantize-pytorch: its gradient, whose gain is the number of levels, with the
  /// losses at full weight instead of divided by it, and its entropies (see
  /// LFQOptions). Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
  /// Options of every level: weights of the losses, frac_per_sample_entropy (the same tokens for
  /// all levels), spherical, orthogonal_rotation, straight_through_activation,
  /// keep_num_codebooks_dim, sync_codebook, process_group. The stack sets shape, scale, clamp and
  /// layout; they are ignored here. So are projection_has_bias, cosine_sim_project_in and
  /// cosine_sim_project_in_scale, as in the reference: the stack's projections are linear layers
  /// with a bias.
  TORCH_ARG(LFQOptions, lfq);
};

/// Options of one call of ResidualLFQImpl::forward and GroupedResidualLFQImpl::forward.
struct TORCHVQ_API ResidualLFQForwardOptions {
  /// bool, one per position (B, *), or per item (B,), true for real tokens. Padding has output 0 and
  /// index -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Fill ResidualLFQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Seed that decides which levels are dropped, as in Python and in vector-quantize-pytorch.
  /// Default: the step number, so that all ranks drop the same levels.
  TORCH_ARG(std::optional<int64_t>, rand_quantize_dropout_fixed_seed);
};

/// Options of a GroupedResidualLFQ module.
struct TORCHVQ_API GroupedResidualLFQOptions {
  /// @param dim   features of the input, a multiple of groups.
  /// @param rlfq  options of every stack; its dim is set by the groups.
  GroupedResidualLFQOptions(int64_t dim, ResidualLFQOptions rlfq)
      : dim_(dim), rlfq_(std::move(rlfq)) {}

  /// Throws c10::ValueError as ResidualLFQOptions::validate() does.
  void validate() const;

  /// Features of the input.
  TORCH_ARG(int64_t, dim);
  /// Residual stacks G, at least 1; each has its share of the features. Default: 1.
  TORCH_ARG(int64_t, groups) = 1;
  /// Input is (B, dim, *): sequences, images, volumes; sets is_channel_first. Default: false.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Options of every stack.
  TORCH_ARG(ResidualLFQOptions, rlfq);
};

}  // namespace torchvq
