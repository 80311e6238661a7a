// Any device: calls the operators that it combines, and plain ATen for the gradient.
#include "ops/sign_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>

#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq {

detail::SignStepTensors detail::sign_step_any(const at::Tensor& latents,
                                              const ops::SignStepOptions& options,
                                              const std::optional<at::Tensor>& mask,
                                              const std::optional<at::Tensor>& entropy_mask,
                                              const std::optional<at::Tensor>& totals,
                                              bool wanted) {
  const auto& weights = options.weights;
  const auto [codes, indices] = ops::sign_quantize(latents, options.scale);
  const auto [per_sample, batch, slope_per_sample, slope_batch] =
      ops::sign_entropy_forward(latents, options.sharpness, entropy_mask, totals, wanted);
  const auto commitment = weights.commitment == 0 ? at::zeros({}, codes.options())
                                                  : ops::commitment_loss(latents, codes, mask);
  const auto entropy = per_sample - batch * weights.diversity_gamma;
  const auto loss = entropy * weights.entropy + commitment * weights.commitment;
  return {codes, indices, loss, per_sample, batch, commitment, slope_per_sample, slope_batch};
}

namespace {

/// Adds tensors; undefined tensors count as zeros.
at::Tensor plus(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a + b;
}

at::Tensor times(const at::Tensor& a, double weight) {
  return a.defined() && weight != 0 ? a * weight : at::Tensor();
}

at::Tensor commitment_part(const at::Tensor& grad, const detail::SignStepSaved& saved) {
  if (!grad.defined()) return {};
  auto difference = saved.latents.to(saved.codes.scalar_type()) - saved.codes;
  if (saved.mask) difference = difference.masked_fill(saved.mask->logical_not().unsqueeze(-1), 0);
  return difference *
         detail::commitment_gradient_scale(grad, saved.latents, saved.mask.value_or(at::Tensor()));
}

}  // namespace

at::Tensor detail::sign_step_backward_any(const SignStepGradients& grads,
                                          const SignStepSaved& saved,
                                          const ops::SignStepWeights& weights) {
  const auto entropy = times(grads.loss, weights.entropy);
  const auto per_sample = plus(entropy, grads.per_sample);
  const auto batch = plus(times(entropy, -weights.diversity_gamma), grads.batch);
  const auto commits = weights.commitment != 0;
  const auto commitment =
      commits ? plus(times(grads.loss, weights.commitment), grads.commitment) : at::Tensor();
  auto total = grads.codes.defined() ? grads.codes.to(saved.codes.scalar_type())
                                     : at::zeros_like(saved.codes);
  total = plus(total, commitment_part(commitment, saved));
  const auto slopes =
      plus(per_sample.defined() ? saved.slope_per_sample * per_sample : at::Tensor(),
           batch.defined() ? saved.slope_batch * batch : at::Tensor());
  return plus(total, slopes).to(saved.latents.scalar_type()).contiguous();
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sign_step", TORCH_FN(detail::sign_step_kernel<&detail::sign_step_any>));
  m.impl("sign_step_backward",
         TORCH_FN(detail::sign_step_backward_kernel<&detail::sign_step_backward_any>));
}

}  // namespace torchvq
