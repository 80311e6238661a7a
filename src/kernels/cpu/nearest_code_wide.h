// nearest_code for float64 where float32 cannot screen: every score is computed exactly as the contract defines it,
// vectorised over codes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_decide.h"
#include "kernels/cpu/nearest_code_exact.h"

namespace torchvq::kernels {

using NearestCodeWideTask = NearestCodeTaskOf<double>;

class NearestCodeWideSearch {
 public:
  NearestCodeWideSearch(const NearestCodeWideTask& task, CpuLevel level);

  /// Writes the k nearest codes of each of `count` rows of x (count, dim); k times -1 for a row
  /// that is not finite.
  void search(const double* x, int64_t count, int64_t* indices) const;

 private:
  bool pack_row(const double* row, double* packed) const;
  void rank(double* scores, std::vector<int32_t>& order, int64_t* indices) const;

  NearestCodeWideTask task_;
  NearestCodeExact exact_;
  int64_t panel_count_ = 0;
  AlignedBuffer<double> panels_;  ///< zeros for excluded codes
  std::vector<double>
      offset_;  ///< per code: the bias as added to the score; infinite for excluded codes
};

}  // namespace torchvq::kernels
