// The search of all scales of HierarchicalVQ, and the update of their codebooks.
// docs/design/hierarchical.md has the decisions.
#pragma once

#include <optional>
#include <vector>

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
  at::Tensor output;                ///< (B, D, *S)
  std::vector<at::Tensor> indices;  ///< (1, B * L) of each scale that was searched
  at::Tensor loss;                  ///< the mean over the scales in use
};

/// Whether the codebook of a scale is frozen in a forward that asks for this, or for nothing.
bool freezes(const HierarchicalVQImpl& hvq, const VectorQuantizeImpl& vq,
             const std::optional<bool>& asked);

/// Searches scale after scale; in training, also updates codebooks and counts the step.
///
/// @param maps  (B, D, *S), float32 or float64.
ScaleWalk walk_scales(HierarchicalVQImpl& hvq, const at::Tensor& maps, const ScaleRequest& request);

}  // namespace torchvq::detail
