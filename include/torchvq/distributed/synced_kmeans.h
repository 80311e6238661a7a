// k-means on the tokens of all ranks, in bounded memory.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Options of synced_kmeans().
struct SyncedKmeansOptions : SyncOptions {
  /// Lloyd iterations, 0 or more. Default: 10.
  int64_t iterations = 10;
  /// "euclidean" or "cosine". Default: "euclidean".
  std::string metric = "euclidean";
  /// (H, N) or (N,), bool, true for real tokens. Default: all.
  std::optional<at::Tensor> mask = std::nullopt;
};

/// kmeans() on the tokens of all ranks. Seeding and early iterations use a sample that every rank
/// gets: the max(65536, 64 K) tokens with the smallest keys (ops/kmeans.h defines keys). If there
/// are no more tokens, the result is that of kmeans(). Otherwise the last third of the iterations
/// and the counts use all tokens, each on its rank.
///
/// Communication  all-gather of the keys, then of the chosen rows (about an equal share from each
///                rank). If there are more tokens than the sample holds: per head and late
///                iteration one all-reduce of statistics, and one all-gather if codes are empty;
///                one all-reduce of counts.
/// @param x  (H, N, D); N may differ between ranks, and be 0.
/// @return   codebook (H, K, D) and counts (H, K), int64, the same on all ranks; zeros if no rank
///           has a usable token.
///
/// Determinism  the bits of one process with the concatenated batch.
/// Throws       as kmeans(); c10::DistBackendError where communication fails.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> synced_kmeans(
    const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng,
    const SyncedKmeansOptions& options = {});

}  // namespace torchvq::distributed
