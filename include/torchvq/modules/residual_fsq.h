// ResidualFSQ and GroupedResidualFSQ: stacks of finite scalar quantizers, each of which quantizes
// the residual of the ones before.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/fsq.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/residual_fsq.h>

namespace torchvq {

namespace detail {
struct Layout;
}  // namespace detail

/// The result of a forward of a stack of scalar quantizers. In GroupedResidualFSQ everything but
/// `quantized` has the groups G as first axis.
struct ResidualFSQOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input
  torch::Tensor indices;    ///< (B, *, Q), int64, -1 where masked or dropped
  torch::Tensor all_codes;  ///< (Q, B, *, D) if requested, else undefined: features last in every
                            ///< layout, zeros for padding; their sum, projected, is the output
};

/// Residual finite scalar quantization: each level quantizes the residual of the levels before.
///
/// Formula  r_0 = softclamp(project_in(x)); q_n = s_n Q(r_n / s_n), s_n = levels^-n;
///          r_{n+1} = r_n - q_n; output = project_out(q_0 + q_1 + ...)
/// Paper    Zeghidour et al. 2021, arXiv:2107.03312; Mentzer et al. 2023, arXiv:2309.15505
/// Parity   vector-quantize-pytorch, class ResidualFSQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::ResidualFSQ quantizer(torchvq::ResidualFSQOptions({8, 5, 5, 3}, 6).dim(256));
/// auto output = quantizer(torch::randn({1, 1024, 256}));
/// ```
class TORCHVQ_API ResidualFSQImpl : public KeptBuffers<ResidualFSQImpl> {
 public:
  explicit ResidualFSQImpl(ResidualFSQOptions options);

  void reset() override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// Takes the options of the module that this one is a copy of, and of its levels.
  void copy_options(const ResidualFSQImpl& other);

  /// Quantizes x: (B, *, dim) with any number of position axes; with is_channel_first (B, dim, *).
  ///
  /// Gradient     that of the stack as a function: the gain is 1 - (1 - g_0) (1 - g_1) ..., with
  ///              g_n the slope of the bound of level n, times that of the soft clamp.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  nothing is communicated; ranks drop the same levels.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  ResidualFSQOutput forward(const torch::Tensor& x, const ResidualFSQForwardOptions& call = {});
  /// forward for a group: if it drops levels, it uses `depth` of them if that is given, else sets it.
  ResidualFSQOutput forward_to_depth(const torch::Tensor& x, const ResidualFSQForwardOptions& call,
                                     std::optional<int64_t>& depth);

  /// Codes (Q, B, *, D) of indices (B, *, q), before project_out. q is the number of levels; with
  /// quantize_dropout it may be smaller, and missing levels give zeros. -1 gives zeros.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices, in the same layout; zeros where all
  /// indices are -1.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);
  /// All codes of each level before its scale, (Q, codebook_size, D), computed at each call.
  torch::Tensor codebooks() const;

  int64_t dim() const {
    return options.dim().value_or(static_cast<int64_t>(options.levels().size()));
  }

  /// Set later, is_channel_first and the rules of quantize_dropout take effect; turning
  /// quantize_dropout on needs a seed in each call; noise_dropout above 0 and vqp_compat are given
  /// to the constructor; other options of levels are set in levels[i]->options.
  ResidualFSQOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};
  std::vector<FSQ> levels;  ///< registered as "layers"
  torch::Tensor rng;        ///< (2,), int64: seed and step, with dropout or noise, else undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualFSQForwardOptions())})

 private:
  struct Stack;
  detail::Layout layout() const;
  bool drops() const { return options.quantize_dropout() && options.num_quantizers() > 1; }
  void check_noise() const;
  bool keeps_codebook_axis() const;
  void cast_scales(torch::Dtype dtype);

  torch::Tensor scales_;                     // (Q, D), never in half precision
  std::optional<torch::Tensor> soft_clamp_;  // (D,) or (1,)
  ResidualFSQOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(ResidualFSQ);

/// Splits the features into groups and gives each its own ResidualFSQ.
///
/// Paper    Yang et al. 2023, HiFi-Codec, arXiv:2305.02765
/// Parity   vector-quantize-pytorch, class GroupedResidualFSQ
class TORCHVQ_API GroupedResidualFSQImpl : public CheckedLoad<GroupedResidualFSQImpl> {
 public:
  explicit GroupedResidualFSQImpl(GroupedResidualFSQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// See ResidualFSQImpl::forward; all groups in training drop the same levels.
  ResidualFSQOutput forward(const torch::Tensor& x, const ResidualFSQForwardOptions& call = {});
  /// Codes (G, Q, B, *, D) of indices (G, B, *, q); see ResidualFSQImpl.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for indices (G, B, *, q), in the same layout.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);
  /// (G, Q, codebook_size, D), computed at each call.
  torch::Tensor codebooks() const;

  /// As at construction; those of a group are set in rvqs[i]->options, see
  /// ResidualFSQImpl::options.
  GroupedResidualFSQOptions options;
  std::vector<ResidualFSQ> rvqs;  ///< registered under this name

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualFSQForwardOptions())})

 private:
  GroupedResidualFSQOptions
      built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(GroupedResidualFSQ);

}  // namespace torchvq
