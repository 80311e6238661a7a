// The packed buffer of a training step, in the two kinds of reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/agreement.h"
#include "distributed/group.h"

namespace torchvq::distributed {

/// Limbs of a count, and bytes of a word of int64, in a buffer of floating point numbers.
constexpr int64_t kCountLimbs = 3;
int64_t bytes_of_a_word(bool wide);

/// Statistics of a rank on their way to the others.
struct StatisticsMessage {
  at::Tensor packed;
  StartedSum sum;
};

/// Adds up statistics over the group, in place of `own`: one all-reduce of int64. All ranks use the
/// same exponents, or the verdict has news and the sums mean nothing.
///
/// @param passed  words (n,) of this rank, int64, which become those of all ranks, (W, n).
StatisticsMessage send_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& passed);
Verdict receive_exact(const Group& group, const StatisticsMessage& message, SyncedStatistics& own,
                      at::Tensor& passed);
Verdict reduce_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     SyncedStatistics& own, at::Tensor& passed);

/// The same in floating point; exponents rise to hold the sums. News need no second round: sums are
/// decoded before.
StatisticsMessage send_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& passed);
Verdict receive_float(const Group& group, const StatisticsMessage& message,
                      at::TensorList exponents, SyncedStatistics& own, at::Tensor& passed);
Verdict reduce_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     at::TensorList exponents, SyncedStatistics& own, at::Tensor& passed);

}  // namespace torchvq::distributed
