// ResidualSimVQ: a stack of SimVQ, each of which quantizes the residual of the ones before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/sim_vq.h>
#include <torchvq/options/sim_vq.h>

namespace torchvq {

namespace detail {
struct Layout;
}  // namespace detail

/// The result of a forward of ResidualSimVQ.
struct ResidualSimVQOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input
  torch::Tensor indices;    ///< (B, *, Q), with several heads (B, *, heads, Q); int64, -1 where
                            ///< masked or dropped
  torch::Tensor loss;       ///< (Q,), 0 for dropped levels; with gradient only in training
  torch::Tensor all_codes;  ///< (Q, B, *, dim) if requested, else undefined: with channel_first
                            ///< (Q, B, dim, *), zeros for padding; their sum is the output
};

/// Residual vector quantization with frozen codes and learnt transforms of them.
///
/// Formula  r_0 = x; q_n = the code of level n that is nearest to r_n; r_{n+1} = r_n - q_n;
///          output = q_0 + q_1 + ...
/// Paper    Zeghidour et al. 2021, arXiv:2107.03312; Zhu et al. 2024, arXiv:2411.02038
/// Parity   vector-quantize-pytorch, class ResidualSimVQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::ResidualSimVQ quantizer(torchvq::ResidualSimVQOptions(512, 4, 1024));
/// auto output = quantizer(torch::randn({1, 1024, 512}));
/// ```
class TORCHVQ_API ResidualSimVQImpl : public KeptBuffers<ResidualSimVQImpl> {
 public:
  explicit ResidualSimVQImpl(ResidualSimVQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Quantizes x: (B, *, dim) with any number of position axes; with channel_first (B, dim, *).
  ///
  /// Gradient     one estimator between the input and the sum of the codes; the gradients of the
  ///              losses reach the transforms and, divided by the number of levels, the input. In a
  ///              step that drops levels the output's has the weight of the share that is left
  ///              (docs/design/residual.md).
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  before the first training step ranks take rank 0's frozen codes; they drop the
  ///              same levels; evaluation never communicates.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  ResidualSimVQOutput forward(const torch::Tensor& x, const ResidualSimVQForwardOptions& call = {});

  /// Codes (Q, B, *, dim), with channel_first (Q, B, dim, *), of indices (B, *, q), with several
  /// heads (B, *, heads, q). q is the number of levels; with quantize_dropout it may be smaller,
  /// and missing levels give zeros. -1 gives zeros.
  torch::Tensor get_codes_from_indices(const torch::Tensor& indices);
  /// The output of forward in evaluation for these indices, in the same layout.
  torch::Tensor get_output_from_indices(const torch::Tensor& indices);
  /// The codes of each level (Q, codebook_size, dim / heads), computed at each call.
  torch::Tensor codebooks();

  /// Set later, rotation_trick, sim_vq().vqp_compat, eval_beam_size, channel_first and the rules of
  /// quantize_dropout take effect, for all levels; turning quantize_dropout on needs a seed in each
  /// call; other options of levels are set in levels[i]->options.
  ResidualSimVQOptions options;
  std::vector<SimVQ> levels;  ///< registered as "layers"
  torch::Tensor rng;          ///< (2,), int64, with dropout, else undefined

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ResidualSimVQForwardOptions())})

 private:
  struct Stack;
  detail::Layout layout() const;
  torch::Tensor losses(const Stack& stack);
  void handshake(const std::string& group) const;
  bool drops() const { return options.quantize_dropout() && options.num_quantizers() > 1; }

  ResidualSimVQOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(ResidualSimVQ);

}  // namespace torchvq
