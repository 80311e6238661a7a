// One forward of a stack of lookup-free quantizers between its projections.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/functional/lookup_free_quantize.h>

namespace torchvq::functional {

/// A level of a stack: one codebook.
struct LookupFreeLevel {
  LookupFreeArguments arguments;
  LookupFreeOptions options;
};

/// Result of residual_lookup_free_quantize(). Padding has codes and indices like any token; the caller
/// replaces them.
struct ResidualLookupFreeStep {
  at::Tensor total;                    ///< (B, N, D), the sum of the codes of all levels
  at::Tensor indices;                  ///< (B, N, Q)
  at::Tensor losses;                   ///< (Q,), weighted; zeros without scores
  std::vector<at::Tensor> codes;       ///< (1, B * N, D) of each level
  std::vector<LookupFreeSigns> signs;  ///< of each level
};

/// Each level takes the signs of the residual that the levels before have left, which has no
/// gradient but that of the tokens.
///
/// @param tokens  (B, N, D), projected, floating point; results are float32 or float64.
/// @param levels  at least one, of one codebook each, which share mask and vqp_compat.
///
/// Gradient     of total to tokens the sum over levels, each as that of lookup_free_quantize().
/// Ties, Empty, Non-finite, Distributed, Throws   as lookup_free_quantize().
TORCHVQ_API ResidualLookupFreeStep
residual_lookup_free_quantize(const at::Tensor& tokens, const std::vector<LookupFreeLevel>& levels);

}  // namespace torchvq::functional
