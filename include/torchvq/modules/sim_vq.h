// SimVQ: frozen codes, and a learnt transform that moves them towards the latents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/functional/residual_linear_quantize.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/sim_vq.h>

namespace torchvq {

namespace detail {
struct Layout;
}  // namespace detail

/// The result of a forward of SimVQ.
struct SimVQOutput {
  torch::Tensor quantized;  ///< the layout and dtype of the input; 0 where masked
  torch::Tensor indices;    ///< (B, *), int64; -1 where masked
  torch::Tensor loss;       ///< scalar, float32 (float64 for float64 input); with gradient in
                            ///< training alone
};

/// Vector quantization with frozen codes and a learnt transform, which moves all codes at every
/// step.
///
/// Formula  codebook = transform(frozen_codebook); index = argmin_k |x - codebook[k]|^2;
///          loss = w (|sg(x) - code|^2 + w_in |x - sg(code)|^2), means over tokens and features
/// Paper    Zhu et al. 2024, SimVQ, arXiv:2411.02038
/// Parity   vector-quantize-pytorch, class SimVQ; the same options and state
///          names; docs/migrating.md lists where the numbers differ
///
/// Example:
/// ```
/// torchvq::SimVQ quantizer(torchvq::SimVQOptions(512, 1024));
/// auto output = quantizer(torch::randn({1, 1024, 512}));
/// ```
class TORCHVQ_API SimVQImpl : public KeptBuffers<SimVQImpl> {
 public:
  /// @param owns_transform  whether codebook_transform is registered here; not where another level
  ///                        of a stack owns it.
  explicit SimVQImpl(SimVQOptions options, bool owns_transform = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// Takes the options of the module that this one is a copy of.
  void copy_options(const SimVQImpl& other, const std::optional<torch::Device>& device);

  /// Quantizes x.
  ///
  /// @param x     (B, *, dim) with any number of position axes; with channel_first (B, dim, *). Any
  ///              floating dtype.
  /// @param mask  bool, one per position, true for real tokens.
  ///
  /// Gradient     in training, of the output to x by the estimator, and of the loss to x and to the
  ///              transform. In evaluation, of the output to the transform.
  /// Ties         the lowest index wins.
  /// Empty        no tokens, or all masked: loss 0.
  /// Non-finite   a token with NaN or infinity gives NaN and index 0.
  /// Distributed  before the first training step ranks take rank 0's frozen codes; nothing else is
  ///              communicated.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
  SimVQOutput forward(const torch::Tensor& x,
                      const std::optional<torch::Tensor>& mask = std::nullopt);

  /// The codes (K, dim), computed from the frozen codes at each call, with gradient to the
  /// transform. In the dtype of the transform; a linear layer of half precision computes in
  /// float32.
  torch::Tensor codebook();
  /// The output of forward in evaluation for these indices (B, *), in the same layout; -1 gives
  /// zeros.
  ///
  /// Throws c10::IndexError for an index outside [-1, K).
  torch::Tensor indices_to_codes(const torch::Tensor& indices);
  /// Codes (*, dim) of indices (*), float32 or float64.
  torch::Tensor decode_tokens(const torch::Tensor& indices);

  /// The search, for forward and for stacks: tensors (1, T, D), codes with gradient to the transform.
  ///
  /// @param tokens     (1, T, D).
  /// @param mask       (1, T), bool.
  /// @param estimator  see functional/quantize.h.
  /// @param chosen     (1, T): indices that are already chosen; there is no search then.
  functional::QuantizeOutput choose(const torch::Tensor& tokens,
                                    const std::optional<torch::Tensor>& mask,
                                    const std::string& estimator,
                                    const std::optional<torch::Tensor>& chosen = std::nullopt);
  /// The transform of a training step, if one operator can compute all codes and choose among them: a
  /// linear layer in the dtype of the codes, which must be that of the tokens' arithmetic.
  std::optional<functional::LinearLevel> linear_level(const torch::Tensor& tokens) const;
  /// The codes (1, K, D) for tokens of this dtype.
  torch::Tensor codes_for(at::ScalarType dtype);
  /// The loss of the result of a search.
  torch::Tensor loss_of(const functional::QuantizeOutput& result,
                        const std::optional<torch::Tensor>& mask) const;
  /// Weights of the half of the loss that pulls latents to codes, and of the half that pulls codes to
  /// latents.
  std::pair<double, double> loss_weights() const;
  /// The name of the gradient of the output, see functional/quantize.h.
  std::string estimator() const;
  /// The same with these options, for a level of a stack.
  std::string estimator(bool rotation_trick, bool vqp_compat) const;
  /// The group of ranks that train together, in training; else "".
  std::string group() const;
  /// Identifies this module in the handshake of ranks.
  int64_t handle() const { return handle_; }
  /// Modules of other owners that this one uses, by the names that they have in Python's state.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> borrowed_modules() const;

  SimVQOptions options;
  torch::Tensor frozen_codebook;        ///< (K, frozen_codebook_dim), registered under this name
  torch::nn::AnyModule code_transform;  ///< registered under this name by its owner

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<torch::Tensor>())})

 private:
  detail::Layout layout() const;
  void handshake(const std::string& group) const;

  SimVQOptions built_from_;  ///< the options at construction, from which clone() builds
  int64_t handle_;
  bool owns_transform_;
};

TORCH_MODULE(SimVQ);

}  // namespace torchvq
