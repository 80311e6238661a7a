// The packed buffer of a training step, in the two kinds of reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/agreement.h"
#include "distributed/group.h"

namespace torchvq::distributed {

/// Adds up statistics over the group, in place of `own`: one all-reduce of int64. All ranks use the
/// same exponents, or the verdict has news and the sums mean nothing.
Verdict reduce_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     SyncedStatistics& own);

/// The same in floating point; exponents rise to hold the sums. News need no second round: sums are
/// decoded before.
Verdict reduce_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     at::TensorList exponents, SyncedStatistics& own);

}  // namespace torchvq::distributed
