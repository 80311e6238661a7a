// ResidualVQ: a stack of codebooks, each of which quantizes the residual of the ones before.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/implicit_codebook.h>
#include <torchvq/modules/in_place_optimizer.h>
#include <torchvq/modules/vector_quantize.h>
#include <torchvq/options/residual_vq.h>

namespace torchvq {

/// The result of a forward of a residual stack. In GroupedResidualVQ everything but `quantized` has
/// the groups G as first axis.
struct ResidualVQOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input
  torch::Tensor indices;    ///< (B, *, Q), with several heads (B, *, heads, Q); int64, -1 where
                            ///< masked or dropped
  torch::Tensor loss;       ///< (Q,), 0 where dropped and in evaluation; with targets a scalar
  torch::Tensor all_codes;  ///< (Q, B, *, D) if requested, else undefined: features last in every
                            ///< layout, zeros for padding; their sum, projected, is the output
};

/// Residual vector quantization: each level quantizes the residual of the levels before.
///
/// Formula  r_0 = project_in(x); q_n = nearest code of r_n; r_{n+1} = r_n - q_n
///          output = project_out(q_0 + q_1 + ...)
/// Paper    Zeghidour et al. 2021, SoundStream, arXiv:2107.03312; Lee et al. 2022, RQ-VAE,
///          arXiv:2203.01941
/// Parity   vector-quantize-pytorch, class ResidualVQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
/// State    state_dict.h, or torch::save and torch::load
///
/// Example:
/// ```
/// const auto options = torchvq::ResidualVQOptions(256).num_quantizers(8).codebook_size(1024);
/// torchvq::ResidualVQ quantizer(options);
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API ResidualVQImpl : public CheckedLoad<ResidualVQImpl>, public InPlaceOptimizer {
 public:
  /// @param owns_bridge  see CodebookImpl.
  explicit ResidualVQImpl(ResidualVQOptions options, bool owns_bridge = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Quantizes x; in training also updates the codebooks.
  ///
  /// @param x        (B, *, dim), with any number of position axes or none, or as the layout
  ///                 options say; any floating dtype but float8.
  /// @param call     options of this call beyond the module's.
  ///
  /// Gradient     one estimator between latent and sum of codes, so the straight-through gain is 1
  ///              for any number of levels; with rotation_trick, directional_reparam or cosine
  ///              codes the mean over the levels. The gradient of the losses to the encoder is
  ///              divided by the number of levels in use (with quant_grad_frac f by the sum of
  ///              (1 - f)^n), which is the gain of the reference, so that the balance of both is
  ///              that of the reference.
  /// Empty        no tokens, or all masked: loss 0 (but for the orthogonal loss, which depends on
  ///              the codes alone), nothing updated.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0, and does not reach the
  ///              codebooks.
  /// Distributed  in training the ranks of vq().process_group() learn together: one all-reduce for
  ///              all levels, see docs/distributed.md. Evaluation never communicates.
  /// Throws       c10::ValueError for wrong shapes or conflicting arguments, c10::TypeError for
  ///              wrong dtypes, c10::IndexError for a target out of range.
  ResidualVQOutput forward(const torch::Tensor& x, const ResidualVQForwardOptions& call = {});
  /// The codes of all levels: (K_n, D), with one codebook per head (H, K_n, D). For implicit
  /// codebooks these are the base codes.
  std::vector<torch::Tensor> codebooks();
  /// Codes (Q, B, *, heads * D) of indices (B, *, q), with several heads (B, *, heads, q), before
  /// project_out: features last in every layout. q is the number of levels; with quantize_dropout
  /// it may be smaller, and missing levels give zeros. -1 gives zeros.
  ///
  /// Throws c10::ValueError for another number of levels, c10::IndexError for an index outside
  /// [-1, K).
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices, in the same layout; zeros where all
  /// indices are -1.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);

  /// The use of the codes of each level; see VectorQuantizeImpl::stats. One exchange for all
  /// levels if `synced`. Dropped levels have no tokens.
  std::vector<CodebookStats> stats(bool synced = false) const;

  /// Steps the in-place optimizers of the codebooks, then clears their gradients; does nothing
  /// without any.
  void update_in_place_optimizer() override;

  /// Copies the options and the state of a stack that was constructed with the same options. Throws
  /// c10::ValueError for one of other levels or tensors.
  void copy_state(const ResidualVQImpl& other, const std::optional<torch::Device>& device);

  /// Throws c10::ValueError in training if diveq has changed since construction.
  void check_diveq() const;

  int64_t num_quantizers() const { return static_cast<int64_t>(levels.size()); }

  /// Set later, the beam sizes and weights, quant_grad_frac, return_zeros_for_masked_padding and
  /// quantize_dropout with its rules take effect, diveq is an error in training, and what levels
  /// have is set in levels[i]->options and levels[i]->codebook_state->options.
  ResidualVQOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};
  std::vector<VectorQuantize> levels;  ///< registered as "layers"
  std::vector<ImplicitCodebook> mlps;  ///< of the levels from 1 on; registered as "mlps"

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualVQForwardOptions())})

 private:
  void make_levels(const std::vector<int64_t>& sizes, int64_t inner);
  /// The levels of indices (*, q), int64; throws c10::ValueError for another number of them.
  int64_t decoded_levels(const torch::Tensor& indices) const;
  /// The codes (B, *, heads * D) of each level.
  std::vector<torch::Tensor> decode_levels(const torch::Tensor& indices);
  /// Their sum.
  torch::Tensor decode_sum(const torch::Tensor& indices);

  ResidualVQOptions built_from_;  ///< the options at construction, from which clone() builds
  bool owns_bridge_;
};

TORCH_MODULE(ResidualVQ);

}  // namespace torchvq
