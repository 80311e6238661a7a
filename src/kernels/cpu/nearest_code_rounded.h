// nearest_code for 6 rows and more on processors that multiply bytes: the codes are rounded to 8 bits for one
// search, as prepare_codes does for many searches.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::kernels {

/// Whether nearest_code_rounded supports `task` at this level and pays off.
bool worth_rounded(const NearestCodeTask& task, CpuLevel level);

/// Writes the nearest code of each of task.rows rows of x (rows, dim). Returns false, with indices unspecified, for
/// rows or codes whose 8-bit scores have no bound, or where too many codes are close to each other.
bool nearest_code_rounded(const NearestCodeTask& task, CpuLevel level,
                          const ParallelFor& parallel_for, const float* x, int64_t* indices);

class RoundedCodes;
struct DescribedCodes;

/// Searches many rows: by bytes, a block of rows at a time, where that pays; otherwise, and from the first block that bytes
/// cannot settle, by NearestCodeSearch, for which the codes are packed only then.
class ManyRowsSearch {
 public:
  ManyRowsSearch(const NearestCodeTask& task, CpuLevel level, const ParallelFor& parallel_for);
  ~ManyRowsSearch();

  /// As NearestCodeSearch::search.
  void search(const float* x, int64_t count, int64_t* indices) const;

 private:
  bool search_block(const float* x, int64_t count, int64_t* indices) const;
  const NearestCodeSearch& packed() const;

  NearestCodeTask task_;
  CpuLevel level_;
  std::unique_ptr<RoundedCodes> rounded_;  ///< null: they do not pay
  std::unique_ptr<DescribedCodes> described_;
  mutable std::atomic<bool> by_bytes_{false};
  mutable std::once_flag packs_;
  mutable std::unique_ptr<NearestCodeSearch> packed_;
};

}  // namespace torchvq::kernels
