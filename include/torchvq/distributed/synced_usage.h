// The use of codebooks by the tokens of one rank, or of all ranks.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Columns of the result of synced_usage().
enum UsageColumn : int64_t {
  kUsage = 0,        // codes with at least one token, over all codes
  kPerplexity = 1,   // 2 ^ entropy: as many equally likely codes would be as varied
  kDead = 2,         // codes whose moving average is below the limit
  kReplaced = 3,     // codes that the step replaced
  kEntropyBits = 4,  // of the codes' frequencies, mean over heads
  kTokens = 5,       // tokens that were counted, of all heads
  kUsageColumns = 6
};

/// Options of synced_usage(), besides those of every synchronised function.
struct UsageOptions : SyncOptions {
  /// Per level, see ops/replace_dead_codes_.h: a code is dead below the larger of `threshold` and
  /// `threshold_fraction` times the mean of its head; where both are 0, below 0.01 (unused,
  /// see ops/ema_update_.h).
  std::vector<double> threshold = {};
  std::vector<double> threshold_fraction = {};
};

/// Statistics of use of all levels of a stack.
///
/// Formula        p = counts / sum of counts of a head; entropy = -sum p log2 p, mean over heads;
///                perplexity = 2 ^ entropy; a head without tokens has entropy 0. Without any token
///                usage, perplexity and entropy are 0.
/// Communication  one all-gather of their number and one all-reduce of all counts, int64; none with
///                an empty group name.
///
/// @param counts        per level (H, K), int64: tokens of each code, of this rank.
/// @param cluster_size  per level (H, K), floating point: replicated moving averages.
/// @param replaced      per level (H,), int64: replicated.
/// @return              (levels, 6), float64: see UsageColumn. Waits for the device.
///
/// Precision    float64, in code order: the same on every rank, device and number of ranks.
/// Throws       c10::ValueError, c10::TypeError for bad arguments, c10::DistBackendError where
///              communication fails.
TORCHVQ_API at::Tensor synced_usage(at::TensorList counts, at::TensorList cluster_size,
                                    at::TensorList replaced, const UsageOptions& options = {});

}  // namespace torchvq::distributed
