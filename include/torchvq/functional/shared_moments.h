// Moments of the tokens of all ranks (ops/token_moments.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// The moments of all ranks, one row each: one all-reduce, no gradient.
TORCHVQ_API at::Tensor gather_moments(const at::Tensor& moments,
                                      const distributed::SyncOptions& options);

/// The result of gather_moments(), with the gradient of this rank's own row, times the number of
/// ranks, so that data-parallel wrappers, which average gradients, give that of one process on all
/// tokens.
TORCHVQ_API at::Tensor attach_moments(const at::Tensor& gathered, const at::Tensor& moments,
                                      const distributed::SyncOptions& options);

}  // namespace torchvq::functional
