#include "ops/sign_step.h"

#include <cmath>
#include <tuple>
#include <utility>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/token_checks.h"
#include "ops/sign_entropy.h"
#include "ops/sign_quantize.h"

namespace torchvq {

namespace detail {

void check_sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                     const std::optional<at::Tensor>& mask,
                     const std::optional<at::Tensor>& entropy_mask,
                     const std::optional<at::Tensor>& totals) {
  constexpr auto op = "sign_step";
  check_tokens(op, "latents", latents);
  check_sign_quantize(latents, options.scale);
  check_sign_entropy(latents, options.sharpness, entropy_mask, totals);
  check_mask(op, mask, latents);
  const auto& weights = options.weights;
  for (const double weight : {weights.entropy, weights.diversity_gamma, weights.commitment}) {
    TORCH_CHECK_VALUE(std::isfinite(weight), op, ": expected weights to be finite, but got ",
                      weight);
  }
}

void check_sign_step_backward(const SignStepGradients& grads, const SignStepSaved& saved) {
  constexpr auto op = "sign_step_backward";
  const auto& latents = saved.latents;
  const auto dtype = value_dtype(latents, latents);
  for (const auto& [name, tensor] : {std::pair<const char*, at::Tensor>{"codes", saved.codes},
                                     {"slope_per_sample", saved.slope_per_sample},
                                     {"slope_batch", saved.slope_batch}}) {
    check_same_tokens(op, "latents", latents, name, tensor);
    check_dtype(op, name, tensor, dtype);
  }
  check_mask(op, saved.mask, latents);
  if (grads.codes.defined()) check_same_tokens(op, "latents", latents, "grad_codes", grads.codes);
  for (const auto& [name, grad] : {std::pair<const char*, at::Tensor>{"grad_loss", grads.loss},
                                   {"grad_per_sample", grads.per_sample},
                                   {"grad_batch", grads.batch},
                                   {"grad_commitment", grads.commitment}}) {
    if (!grad.defined()) continue;
    check_dtype(op, name, grad, dtype);
    check_rank(op, name, grad, 0, "()");
    check_same_device(op, "latents", latents, name, grad);
  }
}

SignStepTensors call_sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& entropy_mask,
                               const std::optional<at::Tensor>& totals, bool wanted) {
  static auto op = op_handle<decltype(sign_step_kernel<&sign_step_any>)>("torchvq::sign_step");
  const auto& weights = options.weights;
  return op.call(latents, options.scale, options.sharpness, mask, entropy_mask, totals,
                 weights.entropy, weights.diversity_gamma, weights.commitment, wanted);
}

at::Tensor call_sign_step_backward(const SignStepGradients& grads, const SignStepSaved& saved,
                                   const ops::SignStepWeights& weights) {
  static auto op = op_handle<decltype(sign_step_backward_kernel<&sign_step_backward_any>)>(
      "torchvq::sign_step_backward");
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return op.call(given(grads.codes), given(grads.loss), given(grads.per_sample), given(grads.batch),
                 given(grads.commitment), saved.latents, saved.codes, saved.slope_per_sample,
                 saved.slope_batch, saved.mask, weights.entropy, weights.diversity_gamma,
                 weights.commitment);
}

}  // namespace detail

namespace ops {

SignStepResult sign_step(const at::Tensor& latents, const SignStepOptions& options,
                         const std::optional<at::Tensor>& mask,
                         const std::optional<at::Tensor>& entropy_mask,
                         const std::optional<at::Tensor>& totals) {
  auto found = detail::call_sign_step(latents, options, mask, entropy_mask, totals, false);
  auto& [codes, indices, loss, per_sample, batch, commitment, s, b] = found;
  return {codes, indices, loss, per_sample, batch, commitment};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  // The last two outputs are the gradients of the entropies with respect to latents, for an
  // upstream gradient of 1; they have no elements unless autograd sets `wanted`.
  m.def(
      "sign_step(Tensor latents, *, float scale=1., float sharpness, Tensor? mask=None, "
      "Tensor? entropy_mask=None, Tensor? totals=None, float entropy_weight=0.1, "
      "float diversity_gamma=1., float commitment_weight=0., bool wanted=False) "
      "-> (Tensor codes, Tensor indices, Tensor loss, Tensor per_sample, Tensor batch, "
      "Tensor commitment, Tensor slope_per_sample, Tensor slope_batch)");
  // The gradient of latents; private, called only by autograd.
  m.def(
      "sign_step_backward(Tensor? grad_codes, Tensor? grad_loss, Tensor? grad_per_sample, "
      "Tensor? grad_batch, Tensor? grad_commitment, Tensor latents, Tensor codes, "
      "Tensor slope_per_sample, Tensor slope_batch, Tensor? mask, float entropy_weight, "
      "float diversity_gamma, float commitment_weight) -> Tensor");
}
