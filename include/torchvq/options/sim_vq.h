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
  /// The transform: a learning module from frozen codes (K, frozen_codebook_dim) to codes (K, dim).
  /// Default: a linear layer without bias.
  TORCH_ARG(torch::nn::AnyModule, codebook_transform);
  /// Function that is applied once to the drawn frozen codes, which are normal with variance 1 /
  /// frozen_codebook_dim; the module keeps a copy of what it returns. Default: none.
  TORCH_ARG(std::function<torch::Tensor(torch::Tensor)>, init_fn);
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Rotate and scale the gradient from code to latent instead of copying it. Default: true.
  TORCH_ARG(bool, rotation_trick) = true;
  /// Weight of the half of the loss that pulls latents to codes, relative to the half that pulls
  /// codes to latents; 0 or more. Default: 0.25.
  TORCH_ARG(double, input_to_quantize_commit_loss_weight) = 0.25;
  /// Weight of both halves; 0 or more. Default: 1.
  TORCH_ARG(double, commitment_weight) = 1.0;
  /// Features of a frozen code, at least 1. Default: dim.
  TORCH_ARG(std::optional<int64_t>, frozen_codebook_dim);
  /// Whether ranks that train together take rank 0's frozen codes before their first step. Default:
  /// if there is a group.
  TORCH_ARG(std::optional<bool>, sync_codebook);
  /// The group of these ranks, by its name in c10d. Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// Behave as vector-quantize-pytorch: its rotation, whose gain near zero is not bounded, and in a
  /// stack its gradient, whose gain is the number of levels. Default: set by TORCHVQ_COMPAT.
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
  /// Number of quantizers Q.
  TORCH_ARG(int64_t, num_quantizers);
  /// Codes per level.
  TORCH_ARG(int64_t, codebook_size);
  /// Codes per latent and level, from one codebook; the features are split over them. Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// In training, use only a random number of the quantizers. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last quantizer that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// The number kept is a multiple of this, or all of them; at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;
  /// Features on axis 1, whatever the number of position axes. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Rotate and scale the gradient from code to latent instead of copying it. Default: true.
  TORCH_ARG(bool, rotation_trick) = true;
  /// Paths through the levels that the search keeps in evaluation, at least 1. Default: none, the
  /// nearest code of each level.
  TORCH_ARG(std::optional<int64_t>, eval_beam_size);
  /// Options of every level; the stack sets shape, layout and rotation, which are ignored here. All
  /// levels share a codebook_transform.
  TORCH_ARG(SimVQOptions, sim_vq) = SimVQOptions(1, 1);
};

/// Options of one call of ResidualSimVQImpl::forward.
struct TORCHVQ_API ResidualSimVQForwardOptions {
  /// bool, one per position (B, *), or per item (B,), true for real tokens. Padding has output 0 and
  /// index -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Fill ResidualSimVQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Seed that decides which levels are dropped, as in Python and in vector-quantize-pytorch.
  /// Default: the step number, so that all ranks drop the same levels.
  TORCH_ARG(std::optional<int64_t>, rand_quantize_dropout_fixed_seed);
};

}  // namespace torchvq
