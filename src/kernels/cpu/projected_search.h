// The codebook of a projected level, prepared once for searches of many rows: its
// codes, or their unit vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/projected_level.h"

namespace torchvq::kernels {

template <typename T>
struct ProjectedSearchTask {
  const T* codebook = nullptr;  ///< (size, dim)
  int64_t size = 0, dim = 0;
  bool cosine = false;
  double zero_code = 0;  ///< added to the distance of codes of zeros, with `cosine`
  int64_t rows = 0;      ///< total number of rows to be searched
};

template <typename T>
class ProjectedSearch {
 public:
  ProjectedSearch(const ProjectedSearchTask<T>& task, CpuLevel level,
                  const ParallelFor& parallel_for)
      : units_(unit_codes(task, level)),
        bias_(bias_of_zeros(task)),
        search_(make(task, level, parallel_for)) {}

  /// Nearest codes of `count` rows, which are unit vectors with `cosine`; -1 for
  /// a row that is not finite.
  void search(const T* rows, int64_t count, int64_t* indices) const {
    search_.search(rows, count, indices);
  }

 private:
  static AlignedBuffer<T> unit_codes(const ProjectedSearchTask<T>& task, CpuLevel level) {
    AlignedBuffer<T> units(task.cosine ? task.size * task.dim : 0);
    if (task.cosine) {
      projected_level<T>(level).unit_vectors(task.codebook, task.size, task.dim, units.data());
    }
    return units;
  }

  /// A bias that adds `zero_code` to codes of zeros; empty if there are none.
  static std::vector<T> bias_of_zeros(const ProjectedSearchTask<T>& task) {
    std::vector<T> bias;
    for (int64_t k = 0; task.cosine && task.zero_code != 0 && k < task.size; ++k) {
      const T* const code = task.codebook + k * task.dim;
      if (std::any_of(code, code + task.dim, [](T value) { return value != 0; })) continue;
      bias.resize(static_cast<size_t>(task.size));
      bias[static_cast<size_t>(k)] = static_cast<T>(task.zero_code);
    }
    return bias;
  }

  NearestCodeSearchOf<T> make(const ProjectedSearchTask<T>& task, CpuLevel level,
                              const ParallelFor& parallel_for) {
    const T* const codes = task.cosine ? units_.data() : task.codebook;
    const T* const bias = bias_.empty() ? nullptr : bias_.data();
    return NearestCodeSearchOf<T>({codes, bias, task.size, task.dim, false, 1, task.rows}, level,
                                  parallel_for);
  }

  AlignedBuffer<T> units_;
  std::vector<T> bias_;
  NearestCodeSearchOf<T> search_;
};

}  // namespace torchvq::kernels
