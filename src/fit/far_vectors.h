// The vectors of a pass that lie farthest from their codes; codes without vectors move to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torchvq::distributed {
class Group;
}

namespace torchvq::fit {

/// Keeps the `most` farthest vectors over any number of blocks. Farther first, then lower row: the
/// choice does not depend on the split into blocks.
class FarVectors {
 public:
  explicit FarVectors(int64_t most) : most_(static_cast<size_t>(most)) {}

  /// @param x          (N, D), float32; rows first, first + 1, ... of the data.
  /// @param distances  (N,), float32: to the code of each.
  void add(const at::Tensor& x, const at::Tensor& distances, int64_t first);

  /// Replaces the vectors of this rank by the farthest vectors of all ranks: one all-gather.
  /// @param dim  number of features, which a rank without vectors does not know.
  void gather(const distributed::Group& group, int64_t dim);

  /// The kept vectors that differ from their codes, farthest first, without repetitions; (D,) each.
  std::vector<at::Tensor> distinct() const;

 private:
  struct Candidate {
    float distance;
    int64_t row;
    at::Tensor vector;
    bool operator<(const Candidate& other) const {
      return distance != other.distance ? distance > other.distance : row < other.row;
    }
  };

  void keep_farthest();

  size_t most_;
  std::vector<Candidate> kept_;  // sorted
};

}  // namespace torchvq::fit
