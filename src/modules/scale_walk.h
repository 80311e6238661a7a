// The search of all scales of HierarchicalVQ, and the update of their codebooks.
// docs/design/hierarchical.md has the decisions.
#pragma once

#include <optional>
#include <vector>

#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/modules/hierarchical_vq.h>

#include "modules/request.h"

namespace torchvq::detail {

/// The arguments of one forward.
struct ScaleRequest {
  std::optional<at::Tensor> mask;   ///< (B, *S)
  std::vector<at::Tensor> targets;  ///< per scale, (B, *shape); or empty
  std::optional<double> temperature;
  std::optional<bool> frozen;  ///< for this call; else as the options say
  int64_t depth;               ///< scales in use
  distributed::Ranks ranks;
};

/// The result of all scales.
struct ScaleWalk {
  at::Tensor output;                           ///< (B, P, D)
  std::vector<functional::StepTokens> tokens;  ///< of each scale that was searched
  std::vector<at::Tensor> counts;              ///< tokens per code of each update, of all ranks
  at::Tensor loss;                             ///< the mean over the scales in use
};

/// Whether the codebook of a scale is frozen in a forward that asks for this, or for nothing.
bool freezes(const HierarchicalVQImpl& hvq, const VectorQuantizeImpl& vq,
             const std::optional<bool>& asked);

/// Searches scale after scale; in training, also updates codebooks and counts the step.
///
/// @param rows       (B, P, D), a map position by position, float32 or float64.
/// @param positions  those of the map, along each axis.
ScaleWalk walk_scales(HierarchicalVQImpl& hvq, const at::Tensor& rows, at::IntArrayRef positions,
                      const ScaleRequest& request);

}  // namespace torchvq::detail
