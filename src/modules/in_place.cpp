#include "modules/in_place.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/commitment_loss.h>

namespace torchvq::detail {

namespace F = functional;

void average_gradients(const std::vector<at::Tensor>& learned, const at::Tensor& tokens,
                       const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks) {
  if (ranks.alone()) {
    return;
  }
  const auto number = mask ? mask->sum().to(tokens.scalar_type()).reshape({1})
                           : tokens.new_full({1}, tokens.size(0) * tokens.size(1));
  std::vector<at::Tensor> parameters, parts{number};
  for (const auto& parameter : learned) {
    if (parameter.grad().defined()) {
      parameters.push_back(parameter);
      parts.push_back(number.mul(parameter.grad().flatten().to(tokens.scalar_type())));
    }
  }
  if (parameters.empty()) {
    return;
  }
  const auto summed = distributed::all_reduce_statistics(at::cat(parts), ranks);
  const auto mean = summed.slice(0, 1).div(summed[0].clamp_min(1));
  int64_t start = 0;
  for (auto& parameter : parameters) {
    const auto own = mean.narrow(0, start, parameter.numel());
    // A tensor of its own: optimizers detach gradients in place, which views do not allow.
    parameter.mutable_grad() = own.view(parameter.sizes()).to(parameter.scalar_type()).clone();
    start += parameter.numel();
  }
}

at::Tensor in_place_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                         const at::Tensor& codebook, const std::optional<at::Tensor>& mask,
                         const distributed::Ranks& ranks) {
  at::AutoGradMode enable_grad(true);
  const auto target = projected.detach();
  const auto chosen = F::quantize(target, codebook, vq.codebook_state->rng, std::nullopt,
                                  F::QuantizeOptions().estimator("none"));
  const auto loss = ops::commitment_loss(chosen.inputs, chosen.codes, mask);
  loss.backward();
  average_gradients(vq.codebook_state->learned_parameters(), target, mask, ranks);
  if (!vq.options.manual_in_place_optimizer_update()) {
    vq.update_in_place_optimizer();
  }
  return loss.detach();
}

}  // namespace torchvq::detail
