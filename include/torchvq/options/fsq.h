// Options of FSQ. The names, meanings and defaults are those of the Python class.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of an FSQ module.
///
/// Example:
/// ```
/// torchvq::FSQ quantizer(torchvq::FSQOptions({8, 5, 5, 5}).dim(256));
/// ```
struct TORCHVQ_API FSQOptions {
  /// @param levels  numbers of levels of the D features of a code, each in [3, 65536], or in [2,
  ///                65536] with preserve_symmetry; their product is at most 2^62.
  explicit FSQOptions(std::vector<int64_t> levels) : levels_(std::move(levels)) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Numbers of levels.
  TORCH_ARG(std::vector<int64_t>, levels);
  /// Features of the input. If it differs from D * num_codebooks, project_in and project_out are
  /// linear layers. Default: D * num_codebooks.
  TORCH_ARG(std::optional<int64_t>, dim);
  /// Codes per latent C; the features are split over them. Default: 1.
  TORCH_ARG(int64_t, num_codebooks) = 1;
  /// Indices have a last axis of C even if that is 1. Default: whether C is above 1.
  TORCH_ARG(std::optional<bool>, keep_num_codebooks_dim);
  /// Has no effect, as in vector-quantize-pytorch.
  TORCH_ARG(std::optional<double>, scale);
  /// Has no effect: quantization is exact in float32 for every dtype but float64.
  TORCH_ARG(std::vector<torch::Dtype>, allowed_dtypes) = { torch::kFloat, torch::kDouble };
  /// Features on axis 1; otherwise on the last. Default: on axis 1 for inputs of 4 axes or more
  /// (images, videos), which have them there in any case with vqp_compat.
  TORCH_ARG(std::optional<bool>, channel_first);
  /// Whether the projections add a bias. Default: true.
  TORCH_ARG(bool, projection_has_bias) = true;
  /// Return indices; without, they are undefined tensors. Default: true.
  TORCH_ARG(bool, return_indices) = true;
  /// Has no effect: quantization never runs in half precision.
  TORCH_ARG(bool, force_quantization_f32) = true;
  /// Levels are evenly spaced in [-1, 1] (Parker et al. 2024, arXiv:2411.19842, eq. 1); otherwise
  /// as in the FSQ paper. Default: false.
  TORCH_ARG(bool, preserve_symmetry) = false;
  /// Fraction of the elements of the codes, in [0, 1], that get noise in training, uniform within
  /// half a step, +- 1 / (L - 1). Indices are those of the codes without noise. Needs
  /// preserve_symmetry. Default: 0.
  TORCH_ARG(double, noise_dropout) = 0.0;
  /// Bound by a clamp to [-1, 1] instead of tanh. Default: false.
  TORCH_ARG(bool, bound_hard_clamp) = false;
  /// Quantize along rotated axes: a random orthogonal matrix is applied before and undone after.
  /// Default: false.
  TORCH_ARG(bool, orthogonal_rotation) = false;
  /// Behave as vector-quantize-pytorch: noise of up to 1/2 on half of the elements for any levels
  /// and any noise_dropout above 0; int32 indices, if the codebook has less than 2^31 codes.
  /// Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

}  // namespace torchvq
