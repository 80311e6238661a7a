// The generator of draws per token on several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Seed and step (2,) for draws per token: ranks hold different tokens, so they draw different
/// numbers.
///
/// @param rng  int64 (2,), the same on all ranks. Without a group it is returned as it is.
TORCHVQ_API at::Tensor noise_rng(const at::Tensor& rng, const SyncOptions& options = {});

}  // namespace torchvq::distributed
