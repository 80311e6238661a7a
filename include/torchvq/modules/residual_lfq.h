// ResidualLFQ: a stack of lookup-free quantizers, each of which quantizes the residual of the ones
// before.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/functional/residual_lookup_free.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/lfq.h>
#include <torchvq/options/residual_lfq.h>

namespace torchvq {

namespace detail {
struct Layout;
}  // namespace detail

/// The result of a forward of a stack of lookup-free quantizers. In GroupedResidualLFQ everything
/// but `quantized` has the groups G as first axis.
struct ResidualLFQOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input
  torch::Tensor indices;    ///< (B, *, Q), int64, -1 where masked or dropped; with
                            ///< keep_num_codebooks_dim (B, *, 1, Q)
  torch::Tensor loss;       ///< (Q,), 0 in evaluation and for dropped levels
  torch::Tensor all_codes;  ///< (Q, B, *, D) if requested, else undefined: features last in every
                            ///< layout, zeros for padding; their sum, projected, is the output
};

/// Residual lookup-free quantization: each level quantizes the residual of the levels before.
///
/// Formula  r_0 = project_in(x); q_n = 2^-n sign(r_n); r_{n+1} = r_n - q_n;
///          output = project_out(q_0 + q_1 + ...)
/// Paper    Zeghidour et al. 2021, arXiv:2107.03312; Yu et al. 2023, arXiv:2310.05737
/// Parity   vector-quantize-pytorch, class ResidualLFQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::ResidualLFQ quantizer(torchvq::ResidualLFQOptions(256, 8, 256));
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API ResidualLFQImpl : public KeptBuffers<ResidualLFQImpl> {
 public:
  /// @param owns_activation  false: another stack of the same group registers the module of
  ///                         straight_through_activation, which all levels share.
  explicit ResidualLFQImpl(ResidualLFQOptions options, bool owns_activation = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// Takes the options of the module that this one is a copy of, and of its levels.
  void copy_options(const ResidualLFQImpl& other, const std::optional<torch::Device>& device);

  /// Quantizes x: (B, *, dim) with any number of position axes; with is_channel_first (B, dim, *).
  ///
  /// Gradient     straight-through to the projected input, once for all levels; with spherical,
  ///              soft_clamp_input_value or straight_through_activation the mean over the levels,
  ///              each through its normalization, clamp and activation. The losses of every level
  ///              reach the input, too, divided by the number of levels. In a step that drops levels
  ///              the output's gradient has the weight of the share that is left.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  in training one all-reduce for the entropies of all levels; ranks drop the same
  ///              levels; evaluation never communicates.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  ResidualLFQOutput forward(const torch::Tensor& x, const ResidualLFQForwardOptions& call = {});

  /// Codes (Q, B, *, D) of indices (B, *, q), before project_out. q is the number of levels; with
  /// quantize_dropout it may be smaller, and missing levels give zeros. -1 gives zeros.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices; zeros where all indices are -1. Features
  /// are last, and on axis 1 with is_channel_first: indices do not say that forward found them there
  /// by itself.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);
  /// All codes of each level (Q, codebook_size, D), computed at each call; before rotation.
  torch::Tensor codebooks() const;

  /// Set later, is_channel_first and the rules of quantize_dropout take effect; turning
  /// quantize_dropout on needs a seed in each call; frac_per_sample_entropy below 1 and vqp_compat
  /// are given to the constructor; other options of levels are set in levels[i]->options.
  ResidualLFQOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};
  std::vector<LFQ> levels;  ///< registered as "layers"
  torch::Tensor rng;  ///< (2,), int64, with dropout or frac_per_sample_entropy, else undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualLFQForwardOptions())})

 private:
  friend class GroupedResidualLFQImpl;
  struct Stack;
  /// The result of the levels in use.
  using Step = functional::ResidualLookupFreeStep;
  /// A forward of a stack whose losses wait for the sums of the other ranks and groups.
  struct Pending {
    ResidualLFQImpl* stack;
    ResidualLFQOutput output;
    Step step;
  };
  /// If it drops levels, it uses `depth` of them if that is given, else sets it.
  Pending start(const torch::Tensor& x, const ResidualLFQForwardOptions& call,
                std::optional<int64_t>& depth, bool channel_first);
  /// Fills in the losses: one all-reduce for all levels of all stacks.
  static void finish(std::vector<Pending>& stacks);
  void check_draws() const;
  bool keeps_codebook_axis() const;
  /// The ranks that share the entropies; empty if there are none.
  std::string group() const;
  /// The stack in messages about ranks.
  std::string label() const;
  detail::Layout layout() const;
  /// Options of a step of a level.
  functional::LookupFreeOptions step_options(size_t level) const;
  std::vector<torch::Tensor> own_totals(const Step& step) const;
  torch::Tensor losses(const Step& step,
                       const std::vector<std::optional<torch::Tensor>>& totals) const;
  void handshake(const std::string& group, const torch::Tensor& x) const;
  bool drops() const { return options.quantize_dropout() && options.num_quantizers() > 1; }

  ResidualLFQOptions built_from_;  ///< the options at construction, from which clone() builds
  bool owns_activation_;
};

TORCH_MODULE(ResidualLFQ);

/// Splits the features into groups and gives each its own ResidualLFQ.
///
/// Paper    Yang et al. 2023, HiFi-Codec, arXiv:2305.02765
/// Parity   vector-quantize-pytorch, class GroupedResidualLFQ
class TORCHVQ_API GroupedResidualLFQImpl : public CheckedLoad<GroupedResidualLFQImpl> {
 public:
  explicit GroupedResidualLFQImpl(GroupedResidualLFQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// See ResidualLFQImpl::forward; all groups share its all-reduce, and in training drop the same
  /// levels.
  ResidualLFQOutput forward(const torch::Tensor& x, const ResidualLFQForwardOptions& call = {});
  /// Codes (G, Q, B, *, D) of indices (G, B, *, q); see ResidualLFQImpl.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for indices (G, B, *, q), in the same layout.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);
  /// (G, Q, codebook_size, D), computed at each call.
  torch::Tensor codebooks() const;

  /// As at construction; those of a group are set in rvqs[i]->options, see
  /// ResidualLFQImpl::options.
  GroupedResidualLFQOptions options;
  std::vector<ResidualLFQ> rvqs;  ///< registered under this name

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualLFQForwardOptions())})

 private:
  GroupedResidualLFQOptions
      built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(GroupedResidualLFQ);

}  // namespace torchvq
