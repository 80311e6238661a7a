// BinaryMapper: draws bits from logits and returns one-hot codes with a gradient.
#pragma once

#include <optional>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/noisy_module.h>
#include <torchvq/options/binary_mapper.h>

namespace torchvq {

/// The result of a forward.
struct BinaryMapperOutput {
  torch::Tensor one_hot;      ///< (*, 2^H), dtype of the logits
  torch::Tensor indices;      ///< (*), int64; -1 where masked
  torch::Tensor aux_kl_loss;  ///< scalar, or (*); 0 if not requested
};

/// Maps H logits to one of 2^H one-hot codes, the latent variable of the Free Transformer.
///
/// Formula   in training bit h is 1 with probability sigmoid(logit h / temperature);
///           in evaluation bit h is 1 if logit h > 0
/// Gradient  that of the codes' probabilities, see ops/binary_codes.h
/// Paper     Fleuret 2025, The Free Transformer, arXiv:2510.17558
/// Parity    vector-quantize-pytorch, class BinaryMapper; the same options and numbers
///
/// Example:
/// ```
/// torchvq::BinaryMapper mapper(torchvq::BinaryMapperOptions(8));
/// auto output = mapper(torch::randn({1, 1024, 8}));
/// ```
class TORCHVQ_API BinaryMapperImpl : public KeptBuffers<BinaryMapperImpl>, public NoisyModule {
 public:
  explicit BinaryMapperImpl(BinaryMapperOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// @param logits   (*, H), floating point.
  /// @param call     options of this call.
  ///
  /// Empty        loss 0. Non-finite: a token with NaN or infinity gives NaN and index 0.
  /// Throws       c10::ValueError, c10::TypeError for bad arguments.
  BinaryMapperOutput forward(const torch::Tensor& logits,
                             const BinaryMapperForwardOptions& call = {});

  /// Entropy of the codes in nats: (*) for logits (*, H).
  torch::Tensor binary_entropy(const torch::Tensor& logits) const;
  /// Only the loss of forward.
  torch::Tensor calc_aux_loss(const torch::Tensor& logits, bool reduce_aux_kl_loss = true) const;
  /// Log-probability of codes, by index (*) or one-hot (*, 2^H): (*), or (*, H) per bit.
  torch::Tensor log_prob(const torch::Tensor& logits, const std::optional<torch::Tensor>& indices,
                         const std::optional<torch::Tensor>& one_hot = std::nullopt,
                         bool sum_bits = true) const;

  BinaryMapperOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(BinaryMapperForwardOptions())})

 private:
  void check_logits(const torch::Tensor& logits) const;
  bool is_deterministic(const BinaryMapperForwardOptions& call) const;
};

TORCH_MODULE(BinaryMapper);

}  // namespace torchvq
