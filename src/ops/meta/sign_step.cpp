#include "ops/sign_step.h"

#include <torch/library.h>

#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

detail::SignStepTensors sign_step(const at::Tensor& latents,
                                  const ops::SignStepOptions& /*options*/,
                                  const OptionalTensor& /*mask*/,
                                  const OptionalTensor& /*entropy_mask*/,
                                  const OptionalTensor& /*totals*/, bool wanted) {
  const auto dtype = detail::value_dtype(latents, latents);
  const auto number = [&] { return detail::empty_loss(latents, latents); };
  const auto room = [&](bool all) { return detail::LossGradients::room(latents, all, dtype); };
  const auto indices = latents.new_empty_symint({latents.sym_size(0), latents.sym_size(1)},
                                                latents.options().dtype(at::kLong));
  return {room(true), indices, number(), number(), number(), number(), room(wanted), room(wanted)};
}

at::Tensor sign_step_backward(const detail::SignStepGradients& /*grads*/,
                              const detail::SignStepSaved& saved,
                              const ops::SignStepWeights& /*weights*/) {
  return saved.latents.new_empty_symint(saved.latents.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("sign_step", TORCH_FN(detail::sign_step_kernel<&sign_step>));
  m.impl("sign_step_backward", TORCH_FN(detail::sign_step_backward_kernel<&sign_step_backward>));
}

}  // namespace torchvq
