// LatentQuantize: a few learnt values for every feature.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/in_place_optimizer.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/latent_quantize.h>

namespace torchvq {

/// The result of a forward.
struct LatentQuantizeOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input; 0 where masked
  torch::Tensor indices;    ///< (B, *), or (B, *, C); int64, -1 where masked
  torch::Tensor loss;       ///< scalar; 0 in evaluation
};

/// Replaces every feature of a latent by the nearest of a few learnt values of that feature.
///
/// Formula  see ops/latent_quantize.h
/// Paper    Hsu et al. 2023, Disentanglement via Latent Quantization, arXiv:2305.18378
/// Parity   vector-quantize-pytorch, class LatentQuantize; the same options and state names. There
///          the values never learn (docs/migrating.md).
/// State    "values_per_latent.0", ..., projections; state_dict.h
///
/// Example:
/// ```
/// torchvq::LatentQuantize quantizer(torchvq::LatentQuantizeOptions({5, 5, 8}, 16));
/// auto output = quantizer(torch::randn({1, 16, 32, 32}));
/// ```
class TORCHVQ_API LatentQuantizeImpl : public CheckedLoad<LatentQuantizeImpl>,
                                       public InPlaceOptimizer,
                                       public HalfPrecision {
 public:
  explicit LatentQuantizeImpl(LatentQuantizeOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// Also casts values that do not learn, which are not part of the state.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// @param z     (B, dim, *), or with channel_first(false) (B, *, dim).
  /// @param mask  bool (B, *), true for real tokens.
  ///
  /// Gradient     of the output to z, straight-through; of the loss to z and the values.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0, and does not reach the
  ///              values.
  /// Throws       c10::ValueError, c10::TypeError for bad arguments.
  LatentQuantizeOutput forward(const torch::Tensor& z,
                               const std::optional<torch::Tensor>& mask = std::nullopt);

  /// Codes (*, D) of latents (*, D), with a straight-through gradient.
  torch::Tensor quantize(const torch::Tensor& z) const;
  /// Indices (*) of codes (*, D); each number counts as the nearest value.
  torch::Tensor codes_to_indices(const torch::Tensor& zhat) const;
  /// Codes of the indices that forward returns, in its layout; -1 gives zeros.
  torch::Tensor indices_to_codes(const torch::Tensor& indices, bool with_projection = true);
  /// Mean of (z - zhat)^2; commitment_loss pulls z, quantization_loss pulls zhat.
  torch::Tensor commitment_loss(const torch::Tensor& z, const torch::Tensor& zhat) const;
  torch::Tensor quantization_loss(const torch::Tensor& z, const torch::Tensor& zhat) const;

  /// The values of each feature.
  std::vector<torch::Tensor> values() const;
  int64_t codebook_size() const;
  bool keeps_codebook_axis() const;

  LatentQuantizeOptions options;
  torch::nn::Linear project_in{nullptr};  ///< empty without projection, like the next
  torch::nn::Linear project_out{nullptr};
  torch::nn::ParameterList values_per_latent{nullptr};  ///< empty with optimize_values(false)

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<torch::Tensor>())})

 private:
  std::vector<torch::Tensor> values_of_step(const torch::Tensor& latents,
                                            const std::optional<torch::Tensor>& mask);
  void handshake(const torch::Tensor& latents, const distributed::SyncOptions& ranks) const;

  std::vector<torch::Tensor> fixed_;  ///< values that do not learn
  int64_t handle_;
  LatentQuantizeOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(LatentQuantize);

}  // namespace torchvq
