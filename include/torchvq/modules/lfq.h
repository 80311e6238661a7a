// LFQ: lookup-free quantization, whose codes are the corners of a cube.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/functional/lookup_free_quantize.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/lfq.h>

namespace torchvq {

/// A projection to scaled cosines: scale * <x, w_j> / (|x| |w_j|) for the columns w_j of `weight`.
class TORCHVQ_API CosineSimLinearImpl : public CheckedLoad<CosineSimLinearImpl> {
 public:
  CosineSimLinearImpl(int64_t dim_in, int64_t dim_out, double scale = 1.0);

  void reset() override;
  /// Maps (..., dim_in) to (..., dim_out), in float32, or float64 for float64 input.
  torch::Tensor forward(const torch::Tensor& x);

  int64_t dim_in, dim_out;
  double scale;
  torch::Tensor weight;  ///< (dim_in, dim_out)
};

TORCH_MODULE(CosineSimLinear);

/// The terms of the loss of a lookup-free quantizer, unweighted; 0 in evaluation. A commitment
/// of weight 0 is 0.
struct LookupFreeLossBreakdown {
  torch::Tensor per_sample_entropy;
  torch::Tensor batch_entropy;
  torch::Tensor commitment;
};

/// The result of a forward of a lookup-free quantizer.
struct LookupFreeOutput {
  torch::Tensor quantized;         ///< the layout and dtype of the input
  torch::Tensor indices;           ///< (B, *), with codebook axis (B, *, C); int64, -1 where masked
  torch::Tensor entropy_aux_loss;  ///< scalar; 0 in evaluation
  LookupFreeLossBreakdown loss_breakdown;
};

/// Lookup-free quantization: each latent becomes its vector of signs, the bits of its index.
///
/// Formula  ops/sign_quantize.h; loss: ops/sign_entropy.h, functional/lookup_free.h
/// Paper    Yu et al. 2023, arXiv:2310.05737; spherical: Zhao et al. 2024, arXiv:2406.07548
/// Parity   vector-quantize-pytorch, class LFQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::LFQ quantizer(torchvq::LFQOptions().codebook_size(65536).spherical(true));
/// auto output = quantizer(torch::randn({1, 1024, 16}));
/// ```
class TORCHVQ_API LFQImpl : public KeptBuffers<LFQImpl> {
 public:
  /// @param is_level         a level of a stack does not warn, and uses the generator of the stack.
  /// @param owns_activation  whether straight_through_activation is registered here; not where
  ///                         another level of a stack owns it.
  explicit LFQImpl(LFQOptions options, bool is_level = false, bool owns_activation = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// Takes the options of the module that this one is a copy of.
  void copy_options(const LFQImpl& other, const std::optional<torch::Device>& device);

  /// Quantizes x.
  ///
  /// @param x                (B, *, dim), or channel-first (B, dim, *). Any floating dtype but
  ///                         float8.
  /// @param inv_temperature  of the soft assignment in the entropies, 0 or more.
  /// @param mask             bool, (B, *) or (B,), true for real tokens. Padding has output 0 and
  ///                         index -1.
  ///
  /// Gradient     of quantized to the latents: that of the activation, identity by default, in
  ///              training; none in evaluation.
  /// Ties         a feature of 0 is an unset bit.
  /// Empty        no tokens, or all masked: loss 0.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  in training one all-reduce of 2^bits numbers; evaluation never communicates.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  LookupFreeOutput forward(const torch::Tensor& x, double inv_temperature = 100.0,
                           const std::optional<torch::Tensor>& mask = std::nullopt);

  /// All codes (codebook_size(), D), computed at each call, before rotation and projection.
  torch::Tensor codebook() const;
  /// Codes of bits (..., D), bool or numbers, which are set if above 0; before rotation and
  /// projection.
  torch::Tensor bits_to_codes(const torch::Tensor& bits) const;
  /// The output of forward in evaluation for the indices that it returns; -1 gives zeros. Indices
  /// of 3 axes or more, not counting the axis of codebooks, give features on axis 1 by default.
  ///
  /// Throws c10::IndexError for an index outside [-1, codebook_size()).
  torch::Tensor indices_to_codes(const torch::Tensor& indices, bool with_projection = true);

  /// D, the bits of a code.
  int64_t codebook_dim() const { return bits_; }
  int64_t codebook_size() const { return int64_t{1} << bits_; }
  /// Features of the input.
  int64_t dim() const { return options.dim().value_or(bits_ * options.num_codebooks()); }
  bool has_projections() const;
  bool keeps_codebook_axis() const {
    return options.keep_num_codebooks_dim().value_or(options.num_codebooks() > 1);
  }
  /// The magnitude of each feature of a code.
  double code_value() const;
  /// Modules of other owners that this one uses, by the names that they have in Python's state.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> borrowed_modules() const;

  LFQOptions options;
  torch::nn::Linear linear_in{nullptr};    ///< "project_in"; empty without projections
  CosineSimLinear cosine_in{nullptr};      ///< "project_in" with cosine_sim_project_in
  torch::nn::Linear project_out{nullptr};  ///< empty without projections
  torch::Tensor bit_values;                ///< "mask", (D,), int64: the value of each bit
  torch::Tensor orthogonal_rot;            ///< (D, D) with orthogonal_rotation, else undefined
  torch::Tensor rng;  ///< (2,), int64, with frac_per_sample_entropy below 1, else undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(100.0)},
                           {2, torch::nn::AnyValue(std::optional<torch::Tensor>())})

 private:
  friend class ResidualLFQImpl;
  /// Options of a step of this module, without those of a call.
  functional::LookupFreeOptions step_options() const;
  /// Arguments of a step of this module. `draw` draws the tokens for the entropies, undefined: all.
  functional::LookupFreeArguments step_arguments(const std::optional<torch::Tensor>& mask,
                                                 const torch::Tensor& draw);
  torch::Tensor projected(const torch::Tensor& tokens);
  torch::Tensor draw_for() const;
  std::string group() const;
  std::string label() const;
  std::string signature() const;
  void handshake(const std::string& group, const torch::Tensor& tokens) const;
  /// Whether the losses of the options make latents grow without bound.
  bool is_unbounded() const;

  LFQOptions built_from_;  ///< the options at construction, from which clone() builds
  bool is_level_, owns_activation_;
  int64_t bits_ = 0;
  int64_t handle_;
};

TORCH_MODULE(LFQ);

}  // namespace torchvq
