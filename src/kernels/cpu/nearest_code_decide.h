// Final decision of nearest_code for one row: exact scores of a few candidates,
// best first, ties by index.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_exact.h"
#include "kernels/cpu/nearest_code_scan.h"

namespace torchvq::kernels {

struct NearestCodeTask {
  const float* codebook = nullptr;  ///< (size, dim)
  const float* bias = nullptr;      ///< (size,) or null
  int64_t size = 0, dim = 0;
  bool cosine = false;
  int64_t k = 1;
  int64_t rows = 0;  ///< total number of rows to be searched

  /// The bias of a code as the contract adds it to the score.
  double bias_of(int64_t code) const { return bias ? bias[code] * (cosine ? 1.0 : 0.5) : 0.0; }
};

bool all_finite(const float* values, int64_t count);

/// In float64, where it is finite if all values are.
double squared_norm(const float* values, int64_t count);

/// The largest magnitude of a finite bias.
double largest_bias(const NearestCodeTask& task);

/// Not thread-safe: it keeps scratch memory between calls.
class NearestCodeDecision {
 public:
  NearestCodeDecision(const NearestCodeTask& task, const NearestCodeExact& exact)
      : task_(task), exact_(exact), unit_(task.cosine ? (1 + kTogether) * task.dim : 0) {}

  /// Writes the k best of `candidates`, given in ascending order, for row x; if there are fewer
  /// than k, `excluded` codes follow in their order.
  void decide(const float* x, const std::vector<int32_t>& candidates,
              const std::vector<int32_t>& excluded, int64_t* indices);

 private:
  static constexpr size_t kTogether = 8;

  /// `rows` point to their unit vectors after it, in places from `first` on; only with the cosine metric.
  void make_unit(const float** rows, size_t count, size_t first);
  /// Scores candidates [begin, begin + kTogether), or up to the last one; returns their number.
  size_t score(const float* x, const std::vector<int32_t>& candidates, size_t begin,
               double* scores);

  const NearestCodeTask& task_;
  const NearestCodeExact& exact_;
  AlignedBuffer<float> unit_;
  std::vector<std::pair<double, int32_t>> rivals_;  ///< (exact score, index)
};

/// The k-th largest of `count` values, -infinity if there are fewer; NaN is skipped.
class KthLargest {
 public:
  float find(const NearestCodeScan& scan, const float* values, int64_t count, int64_t k);

 private:
  std::vector<int32_t> places_;
  std::vector<float> heap_;
};

}  // namespace torchvq::kernels
