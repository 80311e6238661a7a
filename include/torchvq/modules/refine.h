// Joint refinement of the codebooks of trained residual stacks (docs/design/refinement.md).
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/functional/refine_codebooks.h>
#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/residual_vq.h>

namespace torchvq {

/// The result of refine().
struct Refinement {
  double error_before;  ///< mean of (x - sum of its codes)^2 per feature of the projected tokens
  double error_after;   ///< the same with the refined codes; never above error_before
  int64_t iterations;   ///< refits made, on average over groups and heads
};

/// Refits all codebooks of a trained residual stack together, which lowers the error at the same
/// number of bits; functional/refine_codebooks.h describes the computation.
///
/// @param module   a stack with initialised euclidean codebooks.
/// @param tokens   in the layout of its input, any floating dtype but float8; compared in float32.
/// @param mask     bool, one per position, true for real tokens. Default: all.
/// @param options  of the search and the refit; the module sets `label` and `weights`.
///
/// State        codes and their averages change together at the end, cluster_size stays; an error
///              changes nothing. Optimizers keep their state for codes that are parameters.
/// Gradient     none.
/// Non-finite   tokens with NaN or infinity are left out.
/// Distributed  the ranks of process_group() refine together, each with its own tokens, possibly
///              none: the result has the bits of one process with all tokens.
/// Throws       c10::ValueError for cosine codebooks, an affine map, a bridge, implicit neural
///              codebooks or uninitialised codes, too few tokens, bad shapes and options;
///              c10::TypeError for bad dtypes.
/// Example      torchvq::refine(rvq, tokens, std::nullopt, F::RefineCodebooksOptions().beam(8));
TORCHVQ_API Refinement refine(const ResidualVQ& module, const at::Tensor& tokens,
                              const std::optional<at::Tensor>& mask = std::nullopt,
                              const functional::RefineCodebooksOptions& options = {});

/// Refines the stack of every group.
TORCHVQ_API Refinement refine(const GroupedResidualVQ& module, const at::Tensor& tokens,
                              const std::optional<at::Tensor>& mask = std::nullopt,
                              const functional::RefineCodebooksOptions& options = {});

}  // namespace torchvq
