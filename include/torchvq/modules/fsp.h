// FSP: finite scalar perturbation; training adds noise to features, evaluation rounds them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/noisy_module.h>
#include <torchvq/ops/scalar_perturb.h>
#include <torchvq/ops/token_moments.h>
#include <torchvq/options/fsp.h>

namespace torchvq {

/// The result of a forward.
struct FSPOutput {
  torch::Tensor quantized;      ///< the layout and dtype of the input; 0 where masked
  torch::Tensor indices;        ///< (B, *), int64, -1 where masked
  torch::Tensor norm_loss;      ///< scalar, with gradient only in training
  torch::Tensor level_indices;  ///< (B, *, D), int64
  torch::Tensor mean, variance, skewness, kurtosis;  ///< (D), of the latents
  torch::Tensor p_accept_prob;  ///< scalar: the fraction of perturbed features; 1 without any
};

/// Finite scalar perturbation.
///
/// Formula  see ops/scalar_perturb.h and ops/token_moments.h
/// Paper    Zhai et al. 2026, VP-VAE, arXiv:2602.17133
/// Parity   vector-quantize-pytorch, class FSP; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::FSP quantizer(torchvq::FSPOptions({8, 5, 5, 5}));
/// auto output = quantizer(torch::randn({1, 1024, 4}));
/// ```
class TORCHVQ_API FSPImpl : public KeptBuffers<FSPImpl>, public NoisyModule {
 public:
  explicit FSPImpl(FSPOptions options);

  void reset() override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  /// @param z     (B, *, dim), or with channel_first (B, dim, *), or a vector (dim).
  /// @param call  options of this call.
  ///
  /// Distributed  in training the moments are those of all ranks' tokens: one all-reduce.
  /// Throws       c10::ValueError, c10::TypeError for bad arguments.
  FSPOutput forward(const torch::Tensor& z, const FSPForwardOptions& call = {});

  /// The output of forward in evaluation for these indices (B, *); -1 gives zeros.
  torch::Tensor indices_to_codes(const torch::Tensor& indices, double eps = 1e-6);
  /// The centres of the bins of indices (*): (*, D).
  torch::Tensor indices_to_act_value(const torch::Tensor& indices) const;
  /// Indices (*) to levels (*, D), in the dtypes of FSQImpl, and back.
  torch::Tensor indices_to_level_indices(const torch::Tensor& indices) const;
  torch::Tensor level_indices_to_indices(const torch::Tensor& level_indices) const;

  FSPOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(FSPForwardOptions())})

 private:
  distributed::SyncOptions ranks() const;
  void handshake(const torch::Tensor& latents, const distributed::SyncOptions& ranks) const;
  ops::PerturbOptions perturbation(double eps) const;
  ops::MomentLoss norm(const torch::Tensor& latents,
                       const std::optional<torch::Tensor>& mask) const;

  int64_t handle_;
  FSPOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(FSP);

}  // namespace torchvq
