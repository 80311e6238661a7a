#include "modules/in_place.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <torchvq/functional/average_gradients.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/commitment_loss.h>

namespace torchvq::detail {

namespace F = functional;

bool average_gradients_(const std::vector<at::Tensor>& learned, const at::Tensor& tokens,
                        const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks) {
  // What sizes tell needs no value of a tensor, for which a GPU would have to wait.
  const bool certain = !mask && tokens.size(0) * tokens.size(1) > 0;
  if (ranks.alone()) return certain || (mask && mask->any().item<bool>());
  std::vector<at::Tensor> parameters, gradients;
  for (const auto& parameter : learned) {
    if (parameter.grad().defined()) {
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
    }
  }
  // The mean of ones over the tokens of all ranks is 1, or 0 if there is none.
  gradients.push_back(at::ones({}, tokens.options()));
  const auto averages = F::average_gradients(gradients, tokens, mask, ranks);
  if (!certain && averages.back().item<double>() == 0) return false;  // gradients stay as they are
  for (size_t index = 0; index < parameters.size(); ++index) {
    parameters[index].mutable_grad() = averages[index];
  }
  return true;
}

at::Tensor target_of(const at::Tensor& tokens) {
  return tokens.is_inference() ? tokens.clone() : tokens.detach();
}

at::Tensor in_place_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                         const at::Tensor& codebook, const std::optional<at::Tensor>& mask,
                         const distributed::Ranks& ranks) {
  const c10::InferenceMode no_inference(false);
  at::AutoGradMode enable_grad(true);
  const auto target = target_of(projected);
  const auto found = F::quantize(target, codebook, vq.codebook_state->rng, std::nullopt,
                                 F::QuantizeOptions().estimator("none"));
  const auto loss = ops::commitment_loss(found.inputs, found.codes, mask);
  loss.backward();
  const bool learns =
      average_gradients_(vq.codebook_state->learned_parameters(), target, mask, ranks);
  if (learns && !vq.options.manual_in_place_optimizer_update()) {
    vq.update_in_place_optimizer();
  }
  return loss.detach();
}

}  // namespace torchvq::detail
