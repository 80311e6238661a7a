// Options of ResidualFSQ and GroupedResidualFSQ. The names, meanings and defaults are those of the
// Python classes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/fsq.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a ResidualFSQ module.
///
/// Example:
/// ```
/// torchvq::ResidualFSQ quantizer(torchvq::ResidualFSQOptions({8, 5, 5, 3}, 6).dim(256));
/// ```
struct TORCHVQ_API ResidualFSQOptions {
  /// @param levels          numbers of levels of the D features of a code, each in [2, 65536];
  ///                        their product is at most 2^62.
  /// @param num_quantizers  Q, at least 1.
  ResidualFSQOptions(std::vector<int64_t> levels, int64_t num_quantizers)
      : levels_(std::move(levels)), num_quantizers_(num_quantizers) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Numbers of levels.
  TORCH_ARG(std::vector<int64_t>, levels);
  /// Number of quantizers Q.
  TORCH_ARG(int64_t, num_quantizers);
  /// Features of the input. If it differs from D, project_in and project_out are linear layers
  /// around the stack. Default: D.
  TORCH_ARG(std::optional<int64_t>, dim);
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, is_channel_first) = false;
  /// In training, use only a random number of the quantizers. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last quantizer that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// The number kept is a multiple of this, or all of them; at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;
  /// Bound c of the soft clamp c tanh(x / c) before the first level; one number, or one for each of
  /// the D features. Only without bound_hard_clamp. Default: none, but 1 + 1 / (L - 1) with
  /// bound_hard_clamp.
  TORCH_ARG(std::optional<std::vector<double>>, soft_clamp_input_value);
  /// Levels bound their input by a clamp to [-1, 1] instead of tanh. Default: true.
  TORCH_ARG(bool, bound_hard_clamp) = true;
  /// Behave as vector-quantize-pytorch: its gradient, whose gain is the sum of the gains of the
  /// levels, its noise (see FSQOptions), int32 indices. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
  /// Options of every level: noise_dropout, orthogonal_rotation, keep_num_codebooks_dim. The stack
  /// sets levels, bound, symmetry and layout; they are ignored here. So is projection_has_bias, as
  /// in the reference: the stack's linear layers have a bias.
  TORCH_ARG(FSQOptions, fsq) = FSQOptions(std::vector<int64_t>());
};

/// Options of one call of ResidualFSQImpl::forward and GroupedResidualFSQImpl::forward.
struct TORCHVQ_API ResidualFSQForwardOptions {
  /// bool, one per position (B, *), or per item (B,), true for real tokens. Padding has output 0 and
  /// index -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Fill ResidualFSQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Seed that decides which levels are dropped, as in Python and in vector-quantize-pytorch.
  /// Default: the step number, so that all ranks drop the same levels.
  TORCH_ARG(std::optional<int64_t>, rand_quantize_dropout_fixed_seed);
};

/// Options of a GroupedResidualFSQ module.
struct TORCHVQ_API GroupedResidualFSQOptions {
  /// @param dim   features of the input, a multiple of groups.
  /// @param rfsq  options of every stack; its dim is set by the groups.
  GroupedResidualFSQOptions(int64_t dim, ResidualFSQOptions rfsq)
      : dim_(dim), rfsq_(std::move(rfsq)) {}

  /// Throws c10::ValueError as ResidualFSQOptions::validate() does.
  void validate() const;

  /// Features of the input.
  TORCH_ARG(int64_t, dim);
  /// Residual stacks G, at least 1; each has its share of the features. Default: 1.
  TORCH_ARG(int64_t, groups) = 1;
  /// Input is (B, dim, *): sequences, images, volumes; sets is_channel_first. Default: false.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Options of every stack.
  TORCH_ARG(ResidualFSQOptions, rfsq);
};

}  // namespace torchvq
