// Options of SimVQ and ResidualSimVQ. The names, meanings and defaults are those of the Python
// classes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <torch/arg.h>
#include <torch/nn/modules/container/any.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a SimVQ module.
///
/// Example:
/// ```
/// torchvq::SimVQ quantizer(torchvq::SimVQOptions(512, 1024));
/// ```
struct TORCHVQ_API SimVQOptions {
  /// @param dim            features of the input and of a code, at least 1.
  /// @param codebook_size  number of codes K, at least 1.
  SimVQOptions(int64_t dim, int64_t codebook_size) : dim_(dim), codebook_size_(codebook_size) {}

  /// Throws c10::ValueError for an option out of range.
  void validate() const;

  /// Features of the input and of a code.
  TORCH_ARG(int64_t, dim);
  /// Number of codes K.
  TORCH_ARG(int64_t, codebook_size);
  /// Module from frozen codes (K, frozen_codebook_dim) to codes (K, dim), which learns. Default: a
  /// linear layer without bias.
  TORCH_ARG(torch::nn::AnyModule, codebook_transform);
  /// From the frozen codes as they are drawn, normal with the variance 1 / frozen_codebook_dim, to
  /// those that are kept. Default: none.
  TORCH_ARG(std::function<torch::Tensor(torch::Tensor)>, init_fn);
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Rotate and scale the gradient from code to latent instead of copying it. Default: true.
  TORCH_ARG(bool, rotation_trick) = true;
  /// Weight of the half of the loss that pulls latents to codes, relative to that which pulls codes
  /// to latents; 0 or more. Default: 0.25.
  TORCH_ARG(double, input_to_quantize_commit_loss_weight) = 0.25;
  /// Weight of both halves; 0 or more. Default: 1.
  TORCH_ARG(double, commitment_weight) = 1.0;
  /// Features of a frozen code, at least 1. Default: dim.
  TORCH_ARG(std::optional<int64_t>, frozen_codebook_dim);
  /// Whether ranks that train together take rank 0's frozen codes before their first step. Default:
  /// wherever there is a group.
  TORCH_ARG(std::optional<bool>, sync_codebook);
  /// The group of those ranks, as registered with c10d. Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// The rotation of vector-quantize-pytorch, whose gain near zero is not bounded; in a stack its
  /// gradient, whose gain is the number of levels. Default: what TORCHVQ_COMPAT says.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

/// Options of a ResidualSimVQ module.
///
/// Example:
/// ```
/// torchvq::ResidualSimVQ quantizer(torchvq::ResidualSimVQOptions(512, 4, 1024));
/// ```
struct TORCHVQ_API ResidualSimVQOptions {
  /// @param dim             features of the input, a multiple of heads.
  /// @param num_quantizers  Q, at least 1.
  /// @param codebook_size   codes per level, at least 1.
  ResidualSimVQOptions(int64_t dim, int64_t num_quantizers, int64_t codebook_size)
      : dim_(dim), num_quantizers_(num_quantizers), codebook_size_(codebook_size) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Features of the input.
  TORCH_ARG(int64_t, dim);
  /// Quantizers in sequence Q.
  TORCH_ARG(int64_t, num_quantizers);
  /// Codes per level.
  TORCH_ARG(int64_t, codebook_size);
  /// Codes per latent and level, from one codebook; the features are split over them. Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// In training, use a random number of quantizers only. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last one that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// Keep a multiple of this many (or all), at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Rotate and scale the gradient from code to latent instead of copying it. Default: true.
  TORCH_ARG(bool, rotation_trick) = true;
  /// Paths kept between levels in evaluation, at least 1. Default: none, the nearest code of each
  /// level.
  TORCH_ARG(std::optional<int64_t>, eval_beam_size);
  /// Options of every level; shape, layout and rotation are those of the stack, whatever is set
  /// here. A codebook_transform is cloned for every level but the first.
  TORCH_ARG(SimVQOptions, sim_vq) = SimVQOptions(1, 1);
};

/// Options of one call of ResidualSimVQImpl::forward.
struct TORCHVQ_API ResidualSimVQForwardOptions {
  /// (B, *), bool, true for real tokens. Outputs of the others are 0, their indices -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Fill ResidualSimVQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Decides which levels are dropped, the same as in Python and in vector-quantize-pytorch.
  /// Default: the number of the training step, so that ranks drop the same.
  TORCH_ARG(std::optional<int64_t>, rand_quantize_dropout_fixed_seed);
};

}  // namespace torchvq
