#include "kernels/cpu/nearest_code_rounded.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/nearest_code_prepared.h"
#include "kernels/cpu/prepared_scan.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewestRows = 6;
constexpr int64_t kMostRows = 511;  // above: a scan that gives up per block of rows, not as a whole
constexpr int64_t kMostBesideTiles = 191;  // above, with AMX: tiles add 16-bit products as fast
constexpr int64_t kFewestDims = 32;        // below, rounding costs more than it saves
constexpr int64_t kFewestValues = 4096;    // of the codebook; below, likewise
constexpr int64_t kSampledCodes = 64;      // whose mean is the centre
constexpr int64_t kRoundGrain = 1 << 16;   // values per thread

/// The 8-bit copy of a codebook for one call.
class RoundedCodes {
 public:
  explicit RoundedCodes(const NearestCodeTask& task)
      : task_(task), bytes_(prepared_bytes(task.size, task.dim)) {
    reinterpret_cast<PreparedHead*>(bytes_.data())->usable = 1;
    find_center();
  }

  PreparedCodes codes() const { return {bytes_.data(), task_.size, task_.dim}; }

  bool round(const PreparedScan& table, const ParallelFor& parallel_for) {
    const RoundingErrors errors = rounding_errors();
    std::atomic<bool> usable{std::isfinite(errors.shift)};
    const int64_t panels = prepared_panels(task_.size);
    parallel_for(panels, 1 + kRoundGrain / (kPreparedCodes * task_.dim),
                 [&](int64_t begin, int64_t end) {
                   if (!table.round_codes(task_.codebook, task_.size, task_.bias, errors, codes(),
                                          begin, end)) {
                     usable = false;
                   }
                 });
    return usable;
  }

 private:
  float* center() { return const_cast<float*>(codes().center()); }

  /// Any centre is correct; subtracting what the codes have in common saves bits of each code.
  void find_center() {
    float* const mean = center();
    std::fill_n(mean, prepared_center_floats(task_.dim), 0.0F);
    const int64_t step = (task_.size + kSampledCodes - 1) / kSampledCodes;
    float count = 0;
    for (int64_t k = 0; k < task_.size; k += step) {
      const float* const code = task_.codebook + k * task_.dim;
      if (!all_finite(code, task_.dim)) continue;
      ++count;
      for (int64_t d = 0; d < task_.dim; ++d) mean[d] += code[d];
    }
    for (int64_t d = 0; count > 0 && d < task_.dim; ++d) mean[d] /= count;
  }

  /// The constants of score_error() times its slack, with a margin for float32.
  RoundingErrors rounding_errors() {
    constexpr double kUp = kReach / 2 * (1 + 1e-4);
    double square = 0;
    for (int64_t d = 0; d < task_.dim; ++d) {
      square += static_cast<double>(center()[d]) * static_cast<double>(center()[d]);
    }
    const bool small = square < 1e24;
    return {static_cast<float>(kUp * chain_error(task_.dim + 16, kFloatUnit)),
            static_cast<float>(kUp * chain_error(task_.dim + 16, kDoubleUnit)),
            static_cast<float>(kUp * kFloatTiny * static_cast<double>(task_.dim + 16)),
            small ? static_cast<float>(std::sqrt(square) * (1 + 1e-4)) : HUGE_VALF};
  }

  const NearestCodeTask& task_;
  AlignedBuffer<uint8_t> bytes_;
};

}  // namespace

bool worth_rounded(const NearestCodeTask& task, CpuLevel level) {
  const int64_t most = level == CpuLevel::kAmx ? kMostBesideTiles : kMostRows;
  return task.k == 1 && !task.cosine && task.rows >= kFewestRows && task.rows <= most &&
         task.dim >= kFewestDims && task.size * task.dim >= kFewestValues &&
         prepared_bytes(task.size, task.dim) > 0 && prepared_scan(level).round_codes != nullptr;
}

bool nearest_code_rounded(const NearestCodeTask& task, CpuLevel level,
                          const ParallelFor& parallel_for, const float* x, int64_t* indices) {
  // round_codes rejects an infinite bias, which excludes a code, only after
  // rounding the codes before it.
  if (task.bias != nullptr && !all_finite(task.bias, task.size)) return false;
  RoundedCodes rounded(task);
  return rounded.round(prepared_scan(level), parallel_for) &&
         nearest_code_prepared(task, rounded.codes(), level, parallel_for, x, indices);
}

}  // namespace torchvq::kernels
