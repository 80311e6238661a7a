// VectorQuantize: one codebook between an encoder and a decoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/codebook.h>
#include <torchvq/modules/codebook_stats.h>
#include <torchvq/modules/in_place_optimizer.h>
#include <torchvq/options/vector_quantize.h>

namespace torchvq {

/// The terms of the loss, unweighted; absent terms are 0.
struct LossBreakdown {
  torch::Tensor commitment;
  torch::Tensor codebook_diversity;
  torch::Tensor orthogonal_reg;
  torch::Tensor inplace_optimize;
};

/// The result of a forward.
struct VectorQuantizeOutput {
  torch::Tensor
      quantized;  ///< the layout and dtype of the input; one more axis with topk, see forward
  torch::Tensor indices;  ///< (B, *), or (B, *, heads), or (B, *, k); int64, -1 where masked
  torch::Tensor loss;     ///< scalar, 0 in evaluation; or (B, *, k) with topk, without a gradient
                          ///< in evaluation
  LossBreakdown loss_breakdown;
};

/// Vector quantization of latents, with a codebook that learns by moving averages or by gradient.
///
/// Formula  index = argmin_k |project_in(x) - codebook[k]|^2
///          output = project_out(codebook[index])
/// Paper    van den Oord et al. 2017, arXiv:1711.00937
/// Parity   vector-quantize-pytorch, class VectorQuantize; the same options and state
///          names; docs/migrating.md lists where the numbers differ
/// State    state_dict.h, or torch::save and torch::load
///
/// Example:
/// ```
/// const auto options = torchvq::VectorQuantizeOptions(256).codebook_size(512).decay(0.8);
/// torchvq::VectorQuantize quantizer(options);
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API VectorQuantizeImpl : public CheckedLoad<VectorQuantizeImpl>,
                                       public InPlaceOptimizer {
 public:
  explicit VectorQuantizeImpl(VectorQuantizeOptions options);
  /// A level of a stack. `borrowed`: a codebook that another level registers, or empty;
  /// `owns_bridge`: see CodebookImpl.
  VectorQuantizeImpl(VectorQuantizeOptions options, Codebook borrowed, bool owns_bridge = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Quantizes x; in training also updates the codebook.
  ///
  /// @param x        (B, *, dim), with any number of position axes or none; with
  ///                 channel_last(false) (B, dim, *); or a map as the options say.
  /// @param call     options of this call beyond the module's.
  /// @return         see VectorQuantizeOutput. With topk(k): quantized (B, *, k, dim),
  ///                 channel-first (B, dim, *, k).
  ///
  /// Gradient     as the estimator states: rotation trick by default.
  /// Empty        no tokens, or all masked: loss 0 (but for the orthogonal loss, which depends on
  ///              the codes alone), nothing updated.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0, and does not reach the
  ///              codebook.
  /// Distributed  in training the ranks of process_group() learn together: one all-reduce, see
  ///              docs/distributed.md. Evaluation never communicates.
  /// Throws       c10::ValueError for wrong shapes or conflicting arguments, c10::TypeError for
  ///              wrong dtypes, c10::IndexError for a target out of range.
  VectorQuantizeOutput forward(const torch::Tensor& x,
                               const VectorQuantizeForwardOptions& call = {});

  /// The codes that decoding uses: (K, D), or (H, K, D) with one codebook per head.
  torch::Tensor codebook();
  /// Sets the codes and their moving averages, and marks the codebook initialised.
  void set_codebook(const torch::Tensor& codes);
  /// Codes (B, *, heads * D) of the indices that forward returns, before project_out; -1 gives
  /// zeros. Channel-first layouts have the features on axis 1.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);

  /// The use of the codes in the last training forward: usage, perplexity, dead and replaced codes,
  /// entropy. Masked tokens, evaluation and calls with topk do not count.
  ///
  /// @param synced  count the tokens of all ranks of the process group instead of this rank's: one
  ///                exchange, in which all ranks must take part. Has no effect without a group,
  ///                or with sync_codebook(false).
  ///
  /// `dead` and `replaced` follow from state that ranks share. Waits for the device. Checkpoints do
  /// not keep these; copies do.
  CodebookStats stats(bool synced = false) const;

  /// One codebook update from tokens with known indices; in evaluation without replacement of dead
  /// codes. Arguments as for forward; indices may be flat, in one axis.
  void update_ema_indices(const torch::Tensor& x, const torch::Tensor& indices,
                          const std::optional<torch::Tensor>& mask = std::nullopt);
  /// Replaces dead codes by tokens of x (B, N, heads * D), which are already projected; does
  /// nothing without a threshold, or in evaluation.
  void expire_codes_(const torch::Tensor& x);
  /// The values of options whose default depends on other options; one that is set after
  /// construction takes effect, but the codes stay what they are, a parameter or none, in copies
  /// too.
  ResolvedVectorQuantizeOptions resolved() const;
  bool has_commitment_loss() const;
  /// Copies what a level of a stack has besides the layers around its codebook: codebook, options,
  /// counts and in-place optimizer. Throws c10::ValueError for a codebook of other tensors.
  void copy_level(const VectorQuantizeImpl& other, const std::optional<torch::Device>& device);
  /// Modules that belong to this one but are registered by another, by the name they have here.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> borrowed_modules() const;

  /// As they are now; but use_cosine_sim, decay, eps, k-means, dead codes, the decays of
  /// affine_param, manual updates, vq_bridge and sync_every count in codebook_state->options, and
  /// another affine_param is an error.
  VectorQuantizeOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, as are the next two
  torch::nn::LayerNorm project_in_norm{
      nullptr};  ///< with layernorm_after_project_in; part of "project_in"
  torch::nn::Linear project_out{nullptr};
  Codebook codebook_state{nullptr};  ///< registered as "_codebook"
  torch::Tensor
      step_counts;  ///< (H, K), int64: this rank's tokens of each code in the last training
                    ///< forward; undefined before the first; not part of the state

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(VectorQuantizeForwardOptions())})

 private:
  void check_topk(std::optional<int64_t> topk) const;
  void check_arguments(const torch::Tensor& x, const VectorQuantizeForwardOptions& call) const;
  torch::Tensor project(const torch::Tensor& tokens);
  torch::Tensor restore(const torch::Tensor& codes, const torch::Tensor& packed,
                        const torch::Tensor& x, const std::optional<torch::Tensor>& mask);
  torch::Tensor decode(const torch::Tensor& indices);

  VectorQuantizeOptions built_from_;  ///< the options at construction, from which clone() builds
  ResolvedVectorQuantizeOptions resolved_;
  Codebook borrowed_{nullptr};
  bool owns_bridge_ = true;
};

TORCH_MODULE(VectorQuantize);

}  // namespace torchvq
