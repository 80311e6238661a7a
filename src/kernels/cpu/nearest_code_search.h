// Search of one codebook of float32 or float64: packs it once, then finds the nearest codes of ranges of rows,
// serially on each range. Screening in float32 is certified by an error bound; rows with close
// codes are decided by exact scores. Rows of float64 that float32 cannot screen are left to NearestCodeWideSearch.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/nearest_code_decide.h"
#include "kernels/cpu/nearest_code_exact.h"
#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/nearest_code_wide.h"
#include "kernels/cpu/parallel_for.h"

namespace torchvq::kernels {

/// Every code is in one class, except that repeated codes are dropped if k == 1; each
/// class is in order of index.
struct CodeClasses {
  std::vector<int32_t> screened;   ///< in the panels
  std::vector<int32_t> set_aside;  ///< finite, but float32 scores would overflow
  std::vector<int32_t> excluded;   ///< not finite: ranked behind all others
};

template <typename T>
class NearestCodeSearchOf {
 public:
  NearestCodeSearchOf(const NearestCodeTaskOf<T>& task, CpuLevel level,
                      const ParallelFor& parallel_for);

  /// Writes the k nearest codes of each of `count` rows of x (count, dim); k times -1 for a row
  /// that is not finite.
  void search(const T* x, int64_t count, int64_t* indices) const;

 private:
  static constexpr bool kWide = std::is_same_v<T, double>;
  struct Block;

  const NearestCodeReader<T>& reader() const { return of_type<T>(scan_); }
  bool screenable(int64_t code, T square) const;
  CodeListOf<T> code_list(const std::vector<int32_t>& codes) const;
  void classify(const ParallelFor& parallel_for);
  void pack(const ParallelFor& parallel_for);
  void pack_panels(int64_t depth, const ParallelFor& parallel_for);
  void average(const std::vector<int32_t>& codes);
  void bound_scores();
  void make_coarse();
  void bound_set_aside();

  void search_block(Block& block) const;
  void pack_block(Block& block) const;
  void search_nearest(Block& block) const;
  void scan_coarsely(Block& block) const;
  void search_several(Block& block) const;
  void settle_winner(int64_t row, Block& block) const;
  bool repeats_opened(int64_t row, Block& block) const;
  void open(int64_t row, Block& block) const;
  static void settle_repeated(Block& block);
  bool settle_rivals(int64_t row, double limit, Block& block) const;
  void settle_open_rows(Block& block) const;
  bool settle_special(int64_t row, Block& block) const;
  double reach(int64_t position, const Block& block, int64_t row) const;
  bool set_aside_may_win(double norm, double limit) const;
  double limit_of_best(const float* scores, int64_t row, Block& block) const;
  void decide_among(const float* scores, double limit, int64_t row, Block& block) const;
  void decide_among_all(int64_t row, Block& block) const;
  const NearestCodeWideSearch& wide() const;
  void search_left(Block& block) const;

  NearestCodeTaskOf<T> task_;
  CpuLevel level_;
  NearestCodeScan scan_;
  NearestCodeExact exact_;
  CodeClasses codes_;
  bool groups_ = false;      ///< codes that share panel and lane compete as one
  bool own_errors_ = false;  ///< scores contain their own error, in one more dimension
  int64_t depth_ = 0, panel_count_ = 0;
  AlignedBuffer<float> center_, panels_, half_norms_;
  AlignedBuffer<double> squares_;
  std::vector<ScoreError> errors_;  ///< of each position
  AlignedBuffer<int32_t> coarse_;   ///< panels of coarse screening; empty where there is none
  double coarse_norm_ = 0, coarse_rounding_ = 0;  ///< the largest of the codes
  float coarse_scale_ = 0;
  /// Cleared when a block leaves so many rows open that float32 is faster. Either
  /// way gives the same indices.
  mutable std::atomic<bool> coarse_pays_{false};
  /// Cleared when a block leaves so many rows open in float32 that computing their scores at once,
  /// and not after a scan, is faster.
  mutable std::atomic<bool> scan_pays_{true};
  /// Cleared when a block leaves so many rows of float64 that screening them does not pay.
  mutable std::atomic<bool> screening_pays_{true};
  mutable std::once_flag packs_wide_;
  mutable std::unique_ptr<NearestCodeWideSearch> wide_;
  double set_aside_norm_ = HUGE_VAL,
         set_aside_bias_ = HUGE_VAL;  ///< the smallest of those set aside
};
using NearestCodeSearch = NearestCodeSearchOf<float>;

}  // namespace torchvq::kernels
