// Codebooks that depend on the vector decoded so far: QINCo (Huijben et al. 2024,
// arXiv:2401.14732).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/options/residual_vq.h>

namespace torchvq {

/// Computes a level's codes for one token from its base codes and the sum decoded by the levels
/// before (the condition).
///
/// Formula  h = proj_in([condition, code]), then h = h + W2 silu(W1 h) for each of `depth` layers
/// State    the names of Python's `mlps.N`: "proj_in.weight", "layers.0.0.weight",
///          "layers.0.2.weight"
class TORCHVQ_API ImplicitCodebookImpl : public CheckedLoad<ImplicitCodebookImpl> {
 public:
  /// @param dim  features of a code.
  explicit ImplicitCodebookImpl(int64_t dim, ImplicitCodebookOptions options = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Maps base codes (H, K, D) and condition (B, N, D) to the codes of each token (H, B, N, K, D).
  torch::Tensor forward(const torch::Tensor& codes, const torch::Tensor& condition);
  /// Codes (..., D), each computed for its own condition (..., D); both are broadcast.
  torch::Tensor rows(const torch::Tensor& codes, const torch::Tensor& condition);

  int64_t dim;
  ImplicitCodebookOptions options;
  torch::nn::Linear proj_in{nullptr};

 private:
  struct Layer {
    torch::nn::Linear up{nullptr};
    torch::nn::Linear down{nullptr};
  };
  std::vector<Layer> layers_;
};

TORCH_MODULE(ImplicitCodebook);

}  // namespace torchvq
