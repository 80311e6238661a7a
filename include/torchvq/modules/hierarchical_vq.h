// HierarchicalVQ: residual quantization of a feature map from coarse to fine scales.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/vector_quantize.h>
#include <torchvq/options/hierarchical_vq.h>

namespace torchvq {

/// The convolution of a scale's map: weight (D, D, 3, ...) and bias (D,), initialised as in torch.
class TORCHVQ_API ScaleConvolutionImpl : public CheckedLoad<ScaleConvolutionImpl> {
 public:
  /// @param dim   features.
  /// @param axes  number of position axes, 1 to 3.
  ScaleConvolutionImpl(int64_t dim, int64_t axes);

  void reset() override;

  torch::Tensor weight, bias;

 private:
  int64_t dim_, axes_;
};

TORCH_MODULE(ScaleConvolution);

/// Computes the map of a scale from its tokens; see functional::spread_scale.
class TORCHVQ_API ScalePhiImpl : public CheckedLoad<ScalePhiImpl> {
 public:
  ScalePhiImpl(int64_t dim, int64_t axes, double ratio);

  void reset() override;

  /// Spreads tokens (B, L, D) of a grid of that shape to a map (B, D, *full).
  torch::Tensor forward(const torch::Tensor& tokens, at::IntArrayRef shape, at::IntArrayRef full);

  ScaleConvolution conv{nullptr};

 private:
  int64_t dim_, axes_;
  double ratio_;
};

TORCH_MODULE(ScalePhi);

/// The result of a forward of HierarchicalVQ.
struct HierarchicalVQOutput {
  torch::Tensor quantized;             ///< the layout and dtype of the input
  std::vector<torch::Tensor> indices;  ///< (B, *shape) of each scale, int64; -1 where masked or
                                       ///< dropped
  torch::Tensor loss;             ///< the mean over the scales in use, a scalar; 0 in evaluation
  std::optional<int64_t> cutoff;  ///< the last scale in use; none if no scale was dropped
};

/// Residual quantization from coarse to fine: each scale quantizes an average of the residual of
/// the coarser ones.
///
/// Formula  r_0 = x; q_n = nearest codes of the averages of r_n over the cells of scale n;
///          m_n = phi_n(q_n, interpolated); r_{n+1} = r_n - m_n; output = m_0 + m_1 + ...
/// Paper    Tian et al. 2024, VAR, arXiv:2404.02905
/// Parity   vector-quantize-pytorch, class HierarchicalVQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
/// State    state_dict.h, or torch::save and torch::load
///
/// Example:
/// ```
/// torchvq::HierarchicalVQ quantizer(
///     torchvq::HierarchicalVQOptions(32, 4096, {1, 2, 4, 8, 16}).accept_image_fmap(true));
/// auto output = quantizer(torch::randn({2, 32, 16, 16}));
/// ```
class TORCHVQ_API HierarchicalVQImpl : public CheckedLoad<HierarchicalVQImpl> {
 public:
  explicit HierarchicalVQImpl(HierarchicalVQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Quantizes x; in training also updates the codebook.
  ///
  /// @param x     (B, dim, *S), without channel_first (B, *S, dim); S of any size, any floating
  ///              dtype.
  /// @param call  options of this call beyond the module's.
  ///
  /// Gradient     straight-through at each scale: of the output and of the loss to x and to the
  ///              convolutions. In evaluation only to the convolutions.
  /// Empty        no positions, or all masked: loss 0 (but for the orthogonal loss, which depends on
  ///              the codes alone), nothing updated.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0, and does not reach the
  ///              codebook.
  /// Distributed  as VectorQuantize, one update from the tokens of all scales and ranks.
  /// Throws       c10::ValueError for wrong shapes or conflicting arguments, c10::TypeError for
  ///              wrong dtypes, c10::IndexError for a target out of range.
  HierarchicalVQOutput forward(const torch::Tensor& x,
                               const HierarchicalVQForwardOptions& call = {});

  /// The output of forward in evaluation for these indices, in the same layout; float32, float64 for
  /// a double module, or the half precision that the module was cast to.
  ///
  /// @param indices     (B, *shape) of each scale; -1 gives a zero vector, and a scale of only -1
  ///                    adds nothing.
  /// @param full_shape  positions of the input, which the indices do not tell. Default: those of
  ///                    the last scale.
  /// @param mask        (B, *full_shape), the mask of forward.
  ///
  /// Throws c10::ValueError for other shapes, c10::IndexError for an index outside [-1, K).
  torch::Tensor get_output_from_indices(
      const std::vector<torch::Tensor>& indices,
      const std::optional<std::vector<int64_t>>& full_shape = std::nullopt,
      const std::optional<torch::Tensor>& mask = std::nullopt);

  /// The use of the codes of each scale; see VectorQuantizeImpl::stats. One exchange for all
  /// scales if `synced`. A dropped scale has no tokens; scales that share a codebook each report
  /// its dead and replaced codes.
  std::vector<CodebookStats> stats(bool synced = false) const;

  int64_t num_levels() const { return static_cast<int64_t>(resolved_.shapes.size()); }
  const ResolvedHierarchicalVQOptions& resolved() const { return resolved_; }
  /// The quantizer of a scale.
  VectorQuantizeImpl& get_vq(int64_t scale) const;
  /// The module that computes the map of a scale.
  ScalePhi choose_phi(int64_t scale) const;

  /// Set later, freeze_codebook, channel_first, nested_dropout and nested_dropout_min_levels take
  /// effect; options of scales are set in vqs[i]->options and vqs[i]->codebook_state->options.
  HierarchicalVQOptions options;
  std::vector<VectorQuantize> vqs;  ///< one, registered as "vq", or those of the scales, "vqs.N"
  std::vector<ScalePhi> phis;       ///< one, registered as "phi_shared", or several, "phi_levels.N"
  std::vector<torch::Tensor>
      step_counts;  ///< (1, K) for each scale: this rank's tokens of each code in the last training
                    ///< forward; empty before the first; not part of the state

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(HierarchicalVQForwardOptions())})

 private:
  void check_input(const torch::Tensor& x) const;
  /// Indices of every scale as int64, of the shapes of a batch.
  std::vector<torch::Tensor> checked_indices(const std::vector<torch::Tensor>& indices,
                                             int64_t batch) const;
  /// Those of the call, if any, within the codebooks.
  std::vector<torch::Tensor> checked_targets(const torch::Tensor& x,
                                             const HierarchicalVQForwardOptions& call) const;
  torch::Tensor decode_scale(int64_t scale, const torch::Tensor& indices, at::IntArrayRef full);

  ResolvedHierarchicalVQOptions resolved_;
  HierarchicalVQOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(HierarchicalVQ);

}  // namespace torchvq
