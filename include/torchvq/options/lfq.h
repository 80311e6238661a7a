// Options of LFQ. The names, meanings and defaults are those of the Python class.
#pragma once

#include <optional>
#include <string>

#include <torch/nn/modules/container/any.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of an LFQ module.
///
/// Example:
/// ```
/// const auto options = torchvq::LFQOptions().codebook_size(65536).spherical(true);
/// torchvq::LFQ quantizer(options);
/// ```
struct TORCHVQ_API LFQOptions {
  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  void validate() const;

  /// Features of the input. Default: num_codebooks * bits.
  TORCH_ARG(std::optional<int64_t>, dim);
  /// Codes per codebook, a power of 2 up to 2^62. Default: 2^dim.
  TORCH_ARG(std::optional<int64_t>, codebook_size);
  /// Number of codebooks; the features are split over them, and the first belong to codebook 0.
  /// Default: 1.
  TORCH_ARG(int64_t, num_codebooks) = 1;
  /// Indices keep the axis of codebooks. Default: if there are several, where false is an error.
  TORCH_ARG(std::optional<bool>, keep_num_codebooks_dim);
  /// Features on axis 1. Default: for inputs of 4 axes or more.
  TORCH_ARG(std::optional<bool>, channel_first);

  /// Weight of per_sample_entropy - diversity_gamma * batch_entropy, 0 or more. Default: 0.1.
  TORCH_ARG(double, entropy_loss_weight) = 0.1;
  /// Weight of the mean squared distance between latents and codes, 0 or more. Default: 0, with
  /// which latents grow without bound unless another option bounds them; the constructor then
  /// warns by TORCH_WARN.
  TORCH_ARG(double, commitment_loss_weight) = 0.0;
  /// Weight of the batch entropy, 0 or more. Default: 1.
  TORCH_ARG(double, diversity_gamma) = 1.0;
  /// Fraction, in (0, 1], of the tokens of a training batch that enter both entropies, drawn in
  /// each step. Default: 1.
  TORCH_ARG(double, frac_per_sample_entropy) = 1.0;
  /// The loss is softplus(entropy loss + entropy_loss_offset), which is positive. Default: false.
  TORCH_ARG(bool, experimental_softplus_entropy_loss) = false;
  /// Offset in the softplus. Default: 5.
  TORCH_ARG(double, entropy_loss_offset) = 5.0;

  /// Codes have +- this in each feature, or this length with spherical; above 0. Default: 1.
  TORCH_ARG(double, codebook_scale) = 1.0;
  /// Latents are projected to the sphere of radius codebook_scale and codes lie on it (BSQ,
  /// arXiv:2406.07548). Default: false.
  TORCH_ARG(bool, spherical) = false;
  /// Quantize latents rotated by a fixed random matrix, and rotate codes back. Default: false.
  TORCH_ARG(bool, orthogonal_rotation) = false;
  /// Bounds projected latents to +- this by tanh; at least codebook_scale. Default: none.
  TORCH_ARG(std::optional<double>, soft_clamp_input_value);
  /// Module through which the gradient of the output reaches the latents; training only. Default:
  /// identity.
  TORCH_ARG(torch::nn::AnyModule, straight_through_activation);
  /// Has no effect: arithmetic is float32 (float64 for float64) in any case.
  TORCH_ARG(bool, force_quantization_f32) = true;

  /// Linear maps to and from the num_codebooks * bits features. Default: if dim differs from that
  /// number.
  TORCH_ARG(std::optional<bool>, has_projections);
  /// The linear maps have a bias. Default: true.
  TORCH_ARG(bool, projection_has_bias) = true;
  /// project_in is a CosineSimLinear. Default: false.
  TORCH_ARG(bool, cosine_sim_project_in) = false;
  /// Scale of the CosineSimLinear. Default: codebook_scale.
  TORCH_ARG(std::optional<double>, cosine_sim_project_in_scale);

  /// Whether the entropies in training cover the tokens of all ranks. Default: with more than one
  /// rank; never with vqp_compat.
  TORCH_ARG(std::optional<bool>, sync_codebook);
  /// Name of the group of these ranks. Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// Behave as vector-quantize-pytorch: logarithms of the entropies are clamped at 1e-5; with a
  /// mask the batch entropy equals that of the tokens, so that the two cancel, and padding keeps
  /// its output and index. Takes memory for tokens times codes. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

}  // namespace torchvq
