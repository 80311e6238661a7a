// FSQ: finite scalar quantization.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/fsq.h>

namespace torchvq {

/// The result of a forward of a quantizer that learns no codebook.
struct ScalarOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input
  torch::Tensor indices;    ///< (B, *), with several codebooks (B, *, C); int64, -1 where masked;
                            ///< undefined with return_indices(false)
};

/// Finite scalar quantization: every feature of a latent is rounded to one of a few levels.
///
/// Formula  see ops/scalar_quantize.h
/// Paper    Mentzer et al. 2023, arXiv:2309.15505
/// Parity   vector-quantize-pytorch, class FSQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::FSQ quantizer(torchvq::FSQOptions({8, 5, 5, 5}).dim(256));
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API FSQImpl : public KeptBuffers<FSQImpl> {
 public:
  /// @param owns_rng  false: noise is drawn by the stack that this level belongs to.
  explicit FSQImpl(FSQOptions options, bool owns_rng = true);

  void reset() override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  /// Quantizes z.
  ///
  /// @param z     (B, N, dim); (B, dim); images (B, dim, H, W) and videos (B, dim, T, H, W); with
  ///              channel_first (B, dim, *). Any floating dtype but float8.
  /// @param mask  bool, one per position, true for real tokens. Padding has output 0, index -1 and
  ///              no gradient.
  ///
  /// Gradient     that of the bound, as without rounding.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  nothing is communicated; noise differs between the ranks of the default group.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  ScalarOutput forward(const torch::Tensor& z,
                       const std::optional<torch::Tensor>& mask = std::nullopt);

  /// Codes (B, N, C * D), float32 or float64, and indices (B, N, C) of projected tokens
  /// (B, N, C * D), for forward and for stacks.
  ///
  /// @param scale   (D,): quantizes tokens / scale, and multiplies the codes by it.
  /// @param mask    (B, N), bool.
  /// @param rng     (2,), for the noise, if there is any.
  /// @param stream  separates the noise of levels.
  ScalarOutput quantize_tokens(const torch::Tensor& tokens,
                               const std::optional<torch::Tensor>& scale = std::nullopt,
                               const std::optional<torch::Tensor>& mask = std::nullopt,
                               const std::optional<torch::Tensor>& rng = std::nullopt,
                               int64_t stream = 0) const;
  /// Codes (*, C * D) of indices (*, C), before project_out.
  torch::Tensor decode_tokens(const torch::Tensor& indices,
                              const std::optional<torch::Tensor>& scale = std::nullopt) const;

  /// The codes (*, D) of z (*, D) with the options, but without noise and rotation.
  torch::Tensor quantize(const torch::Tensor& z) const;
  /// The codes (*, D) of z (*, D) by the formula of the FSQ paper, for any options but levels of 2.
  torch::Tensor bound(const torch::Tensor& z, bool hard_clamp = false) const;
  /// The codes (*, D) of z (*, D), evenly spaced in [-1, 1], for any options.
  torch::Tensor symmetry_preserving_bound(const torch::Tensor& z, bool hard_clamp = false) const;

  /// Indices (*) of codes (*, D) before the rotation, if any; they lie in [-1, 1], others count as
  /// the nearest.
  torch::Tensor codes_to_indices(const torch::Tensor& zhat) const;
  /// The level of each feature (*, D), from 0, for indices (*); int64, or with vqp_compat int32
  /// for indices whose dtype fits into it.
  torch::Tensor indices_to_level_indices(const torch::Tensor& indices) const;
  /// The output of forward in evaluation for these indices, in its layout; -1 gives zeros. Indices
  /// of three and more positions and batch axes give features on axis 1.
  ///
  /// Throws c10::IndexError for an index outside [-1, codebook_size()).
  torch::Tensor indices_to_codes(const torch::Tensor& indices);
  /// All codes (codebook_size(), D), before project_out, computed at each call.
  torch::Tensor implicit_codebook() const;

  /// D.
  int64_t codebook_dim() const { return static_cast<int64_t>(options.levels().size()); }
  /// D * C.
  int64_t effective_codebook_dim() const { return codebook_dim() * options.num_codebooks(); }
  /// The product of the levels.
  int64_t codebook_size() const;
  /// Features of the input.
  int64_t dim() const { return options.dim().value_or(effective_codebook_dim()); }
  bool keeps_codebook_axis() const {
    return options.keep_num_codebooks_dim().value_or(options.num_codebooks() > 1);
  }
  /// Name of the bound of the levels, see ops/scalar_quantize.h.
  std::string bound_name() const;

  FSQOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};
  torch::Tensor orthogonal_rot;  ///< (D, D) with orthogonal_rotation, else undefined
  torch::Tensor rng;             ///< (2,), int64: seed and step, with noise_dropout, else undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<torch::Tensor>())})

 private:
  FSQOptions built_from_;  ///< the options at construction, from which clone() builds
  bool owns_rng_;
};

TORCH_MODULE(FSQ);

}  // namespace torchvq
