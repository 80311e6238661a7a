// VectorQuantize: one codebook between an encoder and a decoder.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/codebook.h>
#include <torchvq/options/vector_quantize.h>

namespace torchvq {

/// The terms of the loss, unweighted; absent terms are 0.
struct LossBreakdown {
  torch::Tensor commitment;
  torch::Tensor codebook_diversity;
  torch::Tensor orthogonal_reg;
  torch::Tensor inplace_optimize;
};

/// What a forward returns.
struct VectorQuantizeOutput {
  torch::Tensor
      quantized;  ///< the layout and dtype of the input; with topk one more axis, see forward
  torch::Tensor indices;  ///< (B, *), or (B, *, heads), or (B, *, k); int64, -1 where masked
  torch::Tensor loss;     ///< scalar, or (B, *, k) with topk; 0 in evaluation
  LossBreakdown loss_breakdown;
};

/// Vector quantization of latents, with a codebook that learns by moving averages or by gradient.
///
/// Formula  index = argmin_k |project_in(x) - codebook[k]|^2
///          output = project_out(codebook[index])
/// Paper    van den Oord et al. 2017, arXiv:1711.00937
/// Parity   vector-quantize-pytorch, class VectorQuantize; the same options, state names, numbers
/// State    state_dict.h, or torch::save and torch::load
///
/// Example:
/// ```
/// const auto options = torchvq::VectorQuantizeOptions(256).codebook_size(512).decay(0.8);
/// torchvq::VectorQuantize quantizer(options);
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API VectorQuantizeImpl : public torch::nn::Cloneable<VectorQuantizeImpl> {
 public:
  explicit VectorQuantizeImpl(VectorQuantizeOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Quantizes x; in training also updates the codebook.
  ///
  /// @param x        (B, N, dim), (B, dim), or with channel_last(false) (B, dim, N), or as the map
  ///                 options say.
  /// @param options  what this call asks for beyond the module's options.
  /// @return         see VectorQuantizeOutput. With topk(k): quantized (B, *, k, dim),
  ///                 channel-first (B, dim, *, k).
  ///
  /// Gradient     as the estimator states: rotation trick by default.
  /// Empty        no tokens, or all masked: loss 0, nothing updated.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0, and does not reach the
  ///              codebook.
  /// Distributed  local.
  /// Throws       c10::ValueError for wrong shapes or arguments at odds, c10::TypeError for wrong
  ///              dtypes, c10::IndexError for a target out of range.
  VectorQuantizeOutput forward(const torch::Tensor& x,
                               const VectorQuantizeForwardOptions& options = {});

  /// The codes that decoding uses: (K, D), or (H, K, D) with one codebook per head.
  torch::Tensor codebook();
  /// Sets the codes and their moving averages, and marks the codebook initialised.
  void set_codebook(const torch::Tensor& codes);
  /// Code vectors (B, *, heads * D) of indices as forward returns them, before project_out; -1
  /// gives zeros. Channel-first layouts have the features on axis 1.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);

  /// One codebook update from tokens whose codes are known. Arguments as for forward.
  void update_ema_indices(const torch::Tensor& x, const torch::Tensor& indices,
                          const std::optional<torch::Tensor>& mask = std::nullopt);
  /// Replaces dead codes by tokens of x (B, N, heads * D), already projected; nothing happens
  /// without a threshold.
  void expire_codes_(const torch::Tensor& x);
  /// Steps the codebook's own optimizer, then clears its gradients; nothing happens without one.
  void update_in_place_optimizer();
  bool has_in_place_optimizer() const;
  /// What that optimizer has accumulated, "0.exp_avg"; state_dict() includes it.
  std::map<std::string, torch::Tensor> in_place_optimizer_state() const;
  void load_in_place_optimizer_state(const std::map<std::string, torch::Tensor>& state);
  /// Throws c10::ValueError for state of another optimizer.
  void check_in_place_optimizer_state(const std::map<std::string, torch::Tensor>& state) const;

  VectorQuantizeOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, as are the next two
  torch::nn::LayerNorm project_in_norm{
      nullptr};  ///< with layernorm_after_project_in; part of "project_in"
  torch::nn::Linear project_out{nullptr};
  Codebook codebook_state{nullptr};  ///< registered as "_codebook"

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(VectorQuantizeForwardOptions())})

 private:
  struct Call;
  struct Chosen;

  bool channel_first() const;
  int64_t positions_rank(const torch::Tensor& x) const;
  void check_call(const torch::Tensor& x, const VectorQuantizeForwardOptions& options) const;
  Call make_call(const torch::Tensor& x, const VectorQuantizeForwardOptions& options) const;
  std::optional<torch::Tensor> token_mask(const torch::Tensor& x,
                                          const std::optional<torch::Tensor>& mask,
                                          const std::optional<torch::Tensor>& lens) const;
  std::optional<torch::Tensor> head_mask(const std::optional<torch::Tensor>& mask) const;
  torch::Tensor project(const torch::Tensor& tokens);
  torch::Tensor project_back(const torch::Tensor& tokens);
  torch::Tensor search_codes(const Call& call, const torch::Tensor& tokens,
                             torch::ScalarType dtype);
  torch::Tensor in_place_step(const torch::Tensor& projected, const torch::Tensor& codes,
                              const std::optional<torch::Tensor>& mask);
  std::string estimator() const;
  torch::Tensor commitment(const Chosen& chosen, const Call& call) const;
  torch::Tensor diversity(const Chosen& chosen) const;
  torch::Tensor orthogonal(const torch::Tensor& indices) const;
  torch::Tensor total(const LossBreakdown& terms, const Call& call) const;
  torch::Tensor restore(const torch::Tensor& quantized, const torch::Tensor& tokens,
                        const torch::Tensor& x, const std::optional<torch::Tensor>& mask);
  torch::Tensor restore_positions(const torch::Tensor& values, const torch::Tensor& x) const;
  torch::Tensor decode(const torch::Tensor& indices);

  ResolvedVectorQuantizeOptions resolved_;
  std::shared_ptr<torch::optim::Optimizer> in_place_optimizer_;
};

TORCH_MODULE(VectorQuantize);

}  // namespace torchvq
