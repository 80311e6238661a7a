// The packed buffer of a training step, for both kinds of reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/agreement.h"
#include "distributed/group.h"

namespace torchvq::distributed {

/// Limbs of a count, and bytes of an int64 word, in a floating-point buffer.
constexpr int64_t kCountLimbs = 3;
int64_t bytes_of_a_word(bool wide);

/// Statistics of this rank that are being sent.
struct StatisticsMessage {
  at::Tensor packed;
  StartedSum sum;
};

/// Sums statistics over the group, in place of `own`, with one all-reduce of int64. All ranks must
/// use the same exponents; otherwise the verdict has news and the sums are meaningless.
///
/// @param extra  int64 words (n,) of this rank, replaced by those of all ranks, (W, n).
StatisticsMessage send_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& extra);
Verdict receive_exact(const Group& group, const StatisticsMessage& message, SyncedStatistics& own,
                      at::Tensor& extra);
Verdict reduce_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     SyncedStatistics& own, at::Tensor& extra);

/// The same in floating point; exponents rise as needed to hold the sums. News need no second
/// round, because sums are decoded before they are sent.
StatisticsMessage send_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& extra);
Verdict receive_float(const Group& group, const StatisticsMessage& message,
                      at::TensorList exponents, SyncedStatistics& own, at::Tensor& extra);
Verdict reduce_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     at::TensorList exponents, SyncedStatistics& own, at::Tensor& extra);

}  // namespace torchvq::distributed
