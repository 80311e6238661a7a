// Internals of sign_step and its gradient: arguments, checks, and code shared by their kernels.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/ops/sign_step.h>

namespace torchvq::detail {

/// Upstream gradients; undefined where absent.
struct SignStepGradients {
  at::Tensor codes, loss, per_sample, batch, commitment;
};

/// Tensors that forward saves for backward.
struct SignStepSaved {
  at::Tensor latents, codes, slope_per_sample, slope_batch;
  std::optional<at::Tensor> mask;
};

/// Codes, indices, loss, per_sample, batch, commitment, and the slopes of both entropies: their
/// gradients with respect to latents for an upstream gradient of 1, without elements unless wanted.
using SignStepTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                                   at::Tensor, at::Tensor, at::Tensor>;

/// Called by every kernel.
void check_sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                     const std::optional<at::Tensor>& mask,
                     const std::optional<at::Tensor>& entropy_mask,
                     const std::optional<at::Tensor>& totals);

void check_sign_step_backward(const SignStepGradients& grads, const SignStepSaved& saved);

/// The operators with the signatures of the dispatcher.
SignStepTensors call_sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& entropy_mask,
                               const std::optional<at::Tensor>& totals, bool wanted);
at::Tensor call_sign_step_backward(const SignStepGradients& grads, const SignStepSaved& saved,
                                   const ops::SignStepWeights& weights);

/// For any device; the CPU kernels fall back to them for float64.
SignStepTensors sign_step_any(const at::Tensor& latents, const ops::SignStepOptions& options,
                              const std::optional<at::Tensor>& mask,
                              const std::optional<at::Tensor>& entropy_mask,
                              const std::optional<at::Tensor>& totals, bool wanted);
at::Tensor sign_step_backward_any(const SignStepGradients& grads, const SignStepSaved& saved,
                                  const ops::SignStepWeights& weights);

/// Kernels with the signatures of the dispatcher, implemented by functions of the structs above.
template <auto Run>
SignStepTensors sign_step_kernel(const at::Tensor& latents, double scale, double sharpness,
                                 const std::optional<at::Tensor>& mask,
                                 const std::optional<at::Tensor>& entropy_mask,
                                 const std::optional<at::Tensor>& totals, double entropy_weight,
                                 double diversity_gamma, double commitment_weight, bool wanted) {
  const ops::SignStepOptions options{
      scale, sharpness, {entropy_weight, diversity_gamma, commitment_weight}};
  check_sign_step(latents, options, mask, entropy_mask, totals);
  return Run(latents, options, mask, entropy_mask, totals, wanted);
}

template <auto Run>
at::Tensor sign_step_backward_kernel(
    const std::optional<at::Tensor>& grad_codes, const std::optional<at::Tensor>& grad_loss,
    const std::optional<at::Tensor>& grad_per_sample, const std::optional<at::Tensor>& grad_batch,
    const std::optional<at::Tensor>& grad_commitment, const at::Tensor& latents,
    const at::Tensor& codes, const at::Tensor& slope_per_sample, const at::Tensor& slope_batch,
    const std::optional<at::Tensor>& mask, double entropy_weight, double diversity_gamma,
    double commitment_weight) {
  const at::Tensor none;
  const SignStepGradients grads{grad_codes.value_or(none), grad_loss.value_or(none),
                                grad_per_sample.value_or(none), grad_batch.value_or(none),
                                grad_commitment.value_or(none)};
  const SignStepSaved saved{latents, codes, slope_per_sample, slope_batch, mask};
  check_sign_step_backward(grads, saved);
  return Run(grads, saved, {entropy_weight, diversity_gamma, commitment_weight});
}

}  // namespace torchvq::detail
