// The step of an in-place optimizer inside a training forward.
#pragma once

#include <optional>
#include <vector>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

/// The target of a step of a module's own optimizer. Inference tensors are cloned: backward cannot
/// save them.
at::Tensor target_of(const at::Tensor& tokens);

/// Returns whether any rank has a token; if not, the optimizer must not step: with moments or decay
/// it would move codes by gradients of zero, too. Turns the gradients of `learned`, of a mean over
/// this rank's tokens (H, T, D), into those of the mean over the tokens of all ranks.
bool average_gradients_(const std::vector<at::Tensor>& learned, const at::Tensor& tokens,
                        const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks);

/// One step towards the tokens (H, T, D) of this batch; returns the loss of this step.
at::Tensor in_place_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                         const at::Tensor& codebook, const std::optional<at::Tensor>& mask,
                         const distributed::Ranks& ranks);

}  // namespace torchvq::detail
