// The least-squares half of refine_codebooks().
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/vector_blocks.h>

#include "distributed/group.h"
#include "functional/joint_statistics.h"

namespace torchvq::functional {

/// Codebooks (K, D) as (1, K, D).
std::vector<at::Tensor> with_one_head(const std::vector<at::Tensor>& codebooks);

/// Whether two levels have one codebook. A slice or another view of a codebook begins at the same
/// address.
inline bool is_same_codebook(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Codebooks (K, D), and the index of the codebook of each level.
struct LevelCodebooks {
  std::vector<at::Tensor> distinct;
  std::vector<int64_t> of_level;

  std::vector<at::Tensor> levels() const;
  /// Total number of codes in the distinct codebooks.
  int64_t unknowns() const;
};

/// Bytes that refit_jointly() needs.
int64_t joint_refit_bytes(const LevelCodebooks& codebooks);

/// The codebooks that minimise the squared error plus `ridge` times their squared distance to
/// `codebooks`. Rank 0 computes them for all ranks.
std::vector<at::Tensor> refit_jointly(const JointStatistics& statistics,
                                      const LevelCodebooks& codebooks, double ridge,
                                      const distributed::Group& group);

/// Approaches the same minimum by solving for one level after the other, each exactly. The levels
/// must have distinct codebooks.
///
/// @param codes  for each block (rows, Q), int32.
std::vector<at::Tensor> refit_by_level(const VectorBlocks& vectors,
                                       const std::vector<at::Tensor>& codes,
                                       const LevelCodebooks& codebooks, double largest,
                                       double ridge, const distributed::Group& group);

}  // namespace torchvq::functional
