// The step of an in-place optimizer inside a training forward.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/in_place_optimizer.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// The target of a step of a module's own optimizer, and its mask. Inference tensors are cloned:
/// backward cannot save them.
at::Tensor target_of(const at::Tensor& tokens);
std::optional<at::Tensor> target_of(const std::optional<at::Tensor>& mask);

/// One step of a module's own optimizer, which updates `learned` unless it is manual. If it fails, or
/// no rank has a token, the gradients are those before it.
///
/// @param backward  accumulates the gradients of a mean over this rank's tokens, and returns these
///                  tokens (H, T, D).
void step_own_optimizer(InPlaceOptimizer& owner, bool manual,
                        const std::vector<at::Tensor>& learned,
                        const std::function<at::Tensor()>& backward,
                        const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks);

/// A step of the codebook's own optimizer.
struct InPlaceStep {
  at::Tensor loss;  ///< () before the step
  /// (H, K), the tokens of all ranks for each code, if averages and dead codes changed in this step.
  std::optional<at::Tensor> counts;
};

/// One step towards the tokens (H, T, D) of this batch.
///
/// @param learns  whether averages and dead codes change here as well, by the indices that this step
///                has found. The search for the output comes afterwards and so finds the codes of the
///                whole step. If they changed after that search, codes would be a step behind the
///                encoder.
InPlaceStep in_place_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                          const at::Tensor& codebook, const std::optional<at::Tensor>& mask,
                          const Request& request, bool learns);

}  // namespace torchvq::detail
