// Options of HierarchicalVQ. The names, meanings and defaults are those of the Python class.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/residual_vq.h>
#include <torchvq/options/vector_quantize.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// The grid of each scale, coarsest first: `{1, 2, 4}`, or one number per axis, `{{1, 2}, {2, 4}}`.
struct ScaleSizes {
  ScaleSizes(std::initializer_list<int64_t> list) {
    for (const auto size : list) each.push_back({size});
  }
  ScaleSizes(std::initializer_list<std::vector<int64_t>> list) : each(list) {}
  ScaleSizes(const std::vector<int64_t>& list) {  // NOLINT(google-explicit-constructor)
    for (const auto size : list) each.push_back({size});
  }
  ScaleSizes(std::vector<std::vector<int64_t>> list)  // NOLINT(google-explicit-constructor)
      : each(std::move(list)) {}

  std::vector<std::vector<int64_t>> each;  ///< a list of one number holds for all axes
};

/// The values that HierarchicalVQOptions::validate() derives from the options.
struct ResolvedHierarchicalVQOptions {
  std::vector<int64_t> sizes;                ///< codes of each scale
  std::vector<std::vector<int64_t>> shapes;  ///< the grid of each scale, one number per axis
  std::vector<int64_t> convolutions;         ///< which convolution each scale uses
};

/// Options of a HierarchicalVQ module.
///
/// Example:
/// ```
/// torchvq::HierarchicalVQ quantizer(
///     torchvq::HierarchicalVQOptions(32, 4096, {1, 2, 3, 4, 5, 6, 8, 10, 13, 16})
///         .accept_image_fmap(true));
/// ```
struct TORCHVQ_API HierarchicalVQOptions {
  /// @param dim            features of the input and of a code, at least 1.
  /// @param codebook_size  codes of the codebook, or of the codebook of each scale.
  /// @param scales         grids, coarsest first; along no axis smaller than the one before.
  HierarchicalVQOptions(int64_t dim, CodebookSizes codebook_size, ScaleSizes scales)
      : dim_(dim), codebook_size_(std::move(codebook_size)), scales_(std::move(scales)) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  ResolvedHierarchicalVQOptions validate() const;
  /// Number of position axes: 1 for sequences, 2 for images, 3 for volumes.
  int64_t spatial_dims() const { return accept_3d_fmap() ? 3 : accept_image_fmap() ? 2 : 1; }
  /// The options of the quantizer of one scale.
  VectorQuantizeOptions vq(int64_t size) const;

  // Shape
  // -----------------------------------------------------------------------------------------------

  /// Features of the input and of a code.
  TORCH_ARG(int64_t, dim);
  /// Codes of the codebook, or with shared_codebook(false) one size for each scale.
  TORCH_ARG(CodebookSizes, codebook_size);
  /// Grids of the scales, coarsest first.
  TORCH_ARG(ScaleSizes, scales);
  /// One codebook for all scales. Default: true.
  TORCH_ARG(bool, shared_codebook) = true;
  /// Features on axis 1, otherwise on the last. Default: true.
  TORCH_ARG(bool, channel_first) = true;
  /// Input is an image, (B, dim, H, W). Default: false, a sequence (B, dim, N).
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Input is a volume, (B, dim, T, H, W). Default: false.
  TORCH_ARG(bool, accept_3d_fmap) = false;

  // Between scales and map
  // -----------------------------------------------------------------------------------------------

  /// Share of the convolution, |quant_resi|, in the map of a scale; finite. Default: 0.5.
  TORCH_ARG(double, quant_resi) = 0.5;
  /// Number of convolutions that the scales share; below 1, each scale has its own. Default: 1.
  TORCH_ARG(int64_t, share_quant_resi) = 1;
  /// Probability that a training forward drops the last scales, in [0, 1]. Default: 0.
  TORCH_ARG(double, nested_dropout) = 0.0;
  /// Scales that are never dropped, at least 1. Default: 1.
  TORCH_ARG(int64_t, nested_dropout_min_levels) = 1;

  // The codebook: see VectorQuantizeOptions
  // -----------------------------------------------------------------------------------------------

  /// A shared codebook has one update per forward, with this to the power of the scales.
  /// Default: 0.99.
  TORCH_ARG(double, decay) = 0.99;
  /// Default: 1.
  TORCH_ARG(double, commitment_weight) = 1.0;
  /// Default: false.
  TORCH_ARG(bool, rotation_trick) = false;
  /// From the tokens of all scales, with one codebook. Default: true.
  TORCH_ARG(bool, kmeans_init) = true;
  /// Default: 10.
  TORCH_ARG(int64_t, kmeans_iters) = 10;
  /// Default: 2.
  TORCH_ARG(double, threshold_ema_dead_code) = 2.0;
  /// Default: 0, never.
  TORCH_ARG(double, dead_code_threshold_fraction) = 0.0;
  /// Default: false.
  TORCH_ARG(bool, stochastic_sample_codes) = false;
  /// Default: 0.1.
  TORCH_ARG(double, sample_codebook_temp) = 0.1;
  /// Default: 0.
  TORCH_ARG(double, orthogonal_reg_weight) = 0.0;
  /// Default: 128.
  TORCH_ARG(std::optional<int64_t>, orthogonal_reg_max_codes) = 128;
  /// Default: false.
  TORCH_ARG(bool, orthogonal_reg_active_codes_only) = false;
  /// Default: false.
  TORCH_ARG(bool, use_cosine_sim) = false;
  /// Default: false.
  TORCH_ARG(bool, freeze_codebook) = false;
  /// Default: wherever there is a group.
  TORCH_ARG(std::optional<bool>, sync_codebook);
  /// Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// Default: "exact".
  TORCH_ARG(std::string, reduction) = "exact";
  /// See VectorQuantizeOptions. Default: 1.
  TORCH_ARG(int64_t, sync_every) = 1;
  /// Behave as vector-quantize-pytorch: k-means on the coarsest scale, an update after each scale,
  /// dropped scales that have indices and update the codebook; and the differences of
  /// VectorQuantize. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

/// Options of one call of HierarchicalVQImpl::forward.
struct TORCHVQ_API HierarchicalVQForwardOptions {
  /// Target codes, one tensor for each scale: the loss is then the mean over scales of the
  /// cross-entropy of the distances with these targets. -1 is left out.
  TORCH_ARG(std::optional<std::vector<torch::Tensor>>, indices);
  /// (B, *), bool, true for real positions. The output of padding is 0.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// (B,), lengths of sequences, instead of mask.
  TORCH_ARG(std::optional<torch::Tensor>, lens);
  /// Overrides the option.
  TORCH_ARG(std::optional<double>, sample_codebook_temp);
  /// Overrides the option.
  TORCH_ARG(std::optional<bool>, freeze_codebook);
};

}  // namespace torchvq
