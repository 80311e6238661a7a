// Counts and exact sums of the tokens of all ranks: the one all-reduce of a training step.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// One entry per level; see ops/code_statistics.h for shapes.
struct SyncedStatistics {
  std::vector<at::Tensor> counts;
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> exponents;
};

/// Options of synced_code_statistics(), besides those of every synchronised function.
struct SyncedStatisticsOptions : SyncOptions {
  /// Masks (H, N) or (N,), true for real tokens: none, one for all levels, or one per level.
  /// Default: none.
  std::vector<at::Tensor> mask;
  /// Replicated tensors that the ranks compare in the same all-reduce, by hash (cluster_size,
  /// embed, ...).
  std::vector<at::Tensor> state;
  /// (2,), int64: seed and step, compared like state and named in errors. Default: undefined.
  at::Tensor rng;
  /// Other things that must be the same on all ranks (options of the module), compared and quoted
  /// in errors.
  std::string signature;
  /// "exact", or "float" with half the bytes, and bits that depend on the backend and the number of
  /// ranks.
  std::string reduction = "exact";
};

/// code_statistics() of the tokens of all ranks, for all levels of a stack together.
///
/// Formula        counts[l], sums[l]: sum over ranks of
///                code_statistics(x[l], indices[l], exponents[l], mask[l])
/// Communication  one all-reduce of [header | counts 0 | sums 0 | counts 1 | ...], int64. If tokens
///                outgrew an exponent on some rank (the header tells all ranks), all ranks take the
///                largest exponents and repeat: two more. "float": one all-reduce of float32
///                (float64 for float64 tokens), integers in limbs of 12 bits.
/// Agreement      the header compares shapes, options, signature, rng and state; if they differ,
///                every rank throws, and names the values of each rank. Sizes must agree
///                beforehand: handshake_() ensures that.
///
/// @param x          per level (H, N, D), floating point. N may differ between ranks, and be 0.
/// @param indices    per level (H, N), int64, -1 for none.
/// @param exponents  per level (H, K), int32, from code_exponents() of replicated state.
///
/// Gradient     none.
/// Determinism  "exact": the bits of one process with the concatenated batch, on any number of
///              ranks.
/// Throws       as code_statistics(); c10::DistBackendError where communication fails,
///              c10::DistError on all ranks where they disagree.
TORCHVQ_API SyncedStatistics synced_code_statistics(at::TensorList x, at::TensorList indices,
                                                    at::TensorList exponents,
                                                    const SyncedStatisticsOptions& options = {});

}  // namespace torchvq::distributed
