// GroupedResidualVQ: a residual stack for each group of features.
#pragma once

#include <vector>

#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/residual_vq.h>

namespace torchvq {

/// Splits the features into groups and gives each its own ResidualVQ.
///
/// Paper    Yang et al. 2023, HiFi-Codec, arXiv:2305.02765
/// Parity   vector-quantize-pytorch, class GroupedResidualVQ
///
/// Example:
/// ```
/// auto options = torchvq::GroupedResidualVQOptions(256).groups(2);
/// options.rvq().num_quantizers(8).codebook_size(1024);
/// torchvq::GroupedResidualVQ quantizer(options);
/// ```
class TORCHVQ_API GroupedResidualVQImpl : public CheckedLoad<GroupedResidualVQImpl> {
 public:
  explicit GroupedResidualVQImpl(GroupedResidualVQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Quantizes x; in training also updates the codebooks. See ResidualVQImpl::forward; targets,
  /// indices, loss and codes have the groups as first axis. All groups in training drop the same
  /// levels.
  ResidualVQOutput forward(const torch::Tensor& x, const ResidualVQForwardOptions& call = {});

  /// Codes (G, Q, B, *, D) of indices (G, B, *, q); see ResidualVQImpl.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for indices (G, B, *, q), in the same layout.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);

  /// The use of the codes of each group and level; see VectorQuantizeImpl::stats. One exchange
  /// for all groups if `synced`.
  std::vector<std::vector<CodebookStats>> stats(bool synced = false) const;

  /// As at construction; those of a group are set in rvqs[i]->options, see ResidualVQImpl::options.
  GroupedResidualVQOptions options;
  std::vector<ResidualVQ> rvqs;  ///< registered under this name

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualVQForwardOptions())})

 private:
  GroupedResidualVQOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(GroupedResidualVQ);

}  // namespace torchvq
