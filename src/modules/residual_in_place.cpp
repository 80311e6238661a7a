#include "modules/residual_in_place.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <torchvq/functional/quantize.h>
#include <torchvq/ops/commitment_loss.h>

#include "modules/in_place.h"

namespace torchvq::detail {

namespace F = functional;

void step_shared_optimizer(ResidualVQImpl& rvq, const at::Tensor& inputs,
                           const StackRequest& request) {
  if (!rvq.learns_in_place() || !rvq.is_training()) {
    return;
  }
  auto& codebook = *rvq.levels[0]->codebook_state;
  const auto mask = layout_of(rvq).split_mask(request.mask);
  // A step learns in inference mode, too, as it does under no_grad.
  const c10::InferenceMode no_inference(false);
  const auto backward = [&] {
    const at::AutoGradMode enable_grad(true);
    const auto own_mask = target_of(mask);
    auto residual = target_of(inputs);
    for (int64_t index = 0; index < request.depth; ++index) {
      const auto found =
          F::quantize(residual, codebook.codes(), codebook.rng, std::nullopt,
                      F::QuantizeOptions().metric(codebook.metric()).estimator("none"));
      ops::commitment_loss(found.inputs, found.codes, own_mask).backward();
      residual = residual.sub(found.codes.detach());
    }
    return residual;
  };
  // The option of the levels: vqp_compat sets it to true, whatever that of the stack says, and leaves
  // the step to update_in_place_optimizer().
  step_own_optimizer(rvq, rvq.levels[0]->options.manual_in_place_optimizer_update(),
                     codebook.learned_parameters(), backward, mask, request.ranks);
}

}  // namespace torchvq::detail
