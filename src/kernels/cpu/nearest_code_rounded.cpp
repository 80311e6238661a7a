#include "kernels/cpu/nearest_code_rounded.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/nearest_code_prepared.h"
#include "kernels/cpu/prepared_scan.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewestRows = 6;
constexpr int64_t kMostRows = 511;  // above: ManyRowsSearch, which divides rows among threads
constexpr int64_t kBlockRows = 192;
// Where bytes are faster than integers of 16 bits for many rows: looking for hits costs the same for any
// dimensions, and less for each code the more codes there are.
constexpr int64_t kFewestDimsOfBlocks = 64, kFewestValuesOfBlocks = 1 << 15;
constexpr int64_t kFewestCodesOfBlocks = 8192;
constexpr int64_t kCodesOfClose = 32;  // with more than one close code for so many, they are not
constexpr int64_t kMostBesideTiles = 191;  // above, with AMX: tiles add 16-bit products as fast
constexpr int64_t kFewestDims = 32;        // below, rounding costs more than it saves
constexpr int64_t kFewestValues = 4096;    // of the codebook; below, likewise
constexpr int64_t kSampledCodes = 64;      // whose mean is the centre
constexpr int64_t kRoundGrain = 1 << 16;   // values per thread

}  // namespace

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

  NearestCodeTask task_;
  AlignedBuffer<uint8_t> bytes_;
};

namespace {

/// Whether there is a copy of the codes, and multiplying bytes saves more than making it costs.
bool worth_bytes(const NearestCodeTask& task, CpuLevel level) {
  return task.k == 1 && !task.cosine && task.dim >= kFewestDims &&
         task.size * task.dim >= kFewestValues && prepared_bytes(task.size, task.dim) > 0 &&
         prepared_scan(level).round_codes != nullptr;
}

/// A bias of infinity excludes a code, which has no bound; round_codes would find it after the codes before it.
bool has_bounds(const NearestCodeTask& task) {
  return task.bias == nullptr || all_finite(task.bias, task.size);
}

bool worth_blocks_of_bytes(const NearestCodeTask& task, CpuLevel level) {
  const bool wide =
      task.dim >= kFewestDimsOfBlocks && task.size * task.dim >= kFewestValuesOfBlocks;
  return level != CpuLevel::kAmx && worth_bytes(task, level) &&
         (wide || task.size >= kFewestCodesOfBlocks);
}

void serially(int64_t count, int64_t /*grain*/, const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

}  // namespace

bool worth_rounded(const NearestCodeTask& task, CpuLevel level) {
  const int64_t most = level == CpuLevel::kAmx ? kMostBesideTiles : kMostRows;
  return task.rows >= kFewestRows && task.rows <= most && worth_bytes(task, level);
}

bool nearest_code_rounded(const NearestCodeTask& task, CpuLevel level,
                          const ParallelFor& parallel_for, const float* x, int64_t* indices) {
  if (!has_bounds(task)) return false;
  RoundedCodes rounded(task);
  return rounded.round(prepared_scan(level), parallel_for) &&
         nearest_code_prepared(task, {task, rounded.codes()}, level, parallel_for, x, indices);
}

ManyRowsSearch::ManyRowsSearch(const NearestCodeTask& task, CpuLevel level,
                               const ParallelFor& parallel_for)
    : task_(task), level_(level) {
  if (worth_blocks_of_bytes(task, level) && has_bounds(task)) {
    rounded_ = std::make_unique<RoundedCodes>(task);
    by_bytes_ = rounded_->round(prepared_scan(level), parallel_for);
  }
  if (by_bytes_) described_ = std::make_unique<DescribedCodes>(task, rounded_->codes());
  if (!by_bytes_) packed_ = std::make_unique<NearestCodeSearch>(task, level, parallel_for);
}

ManyRowsSearch::~ManyRowsSearch() = default;

void ManyRowsSearch::search(const float* x, int64_t count, int64_t* indices) const {
  int64_t done = 0;
  while (done < count && by_bytes_.load(std::memory_order_relaxed)) {
    const int64_t rows = std::min(kBlockRows, count - done);
    if (!search_block(x + done * task_.dim, rows, indices + done)) {
      by_bytes_.store(false, std::memory_order_relaxed);
      break;
    }
    done += rows;
  }
  if (done < count) {
    packed().search(x + done * task_.dim, count - done, indices + done * task_.k);
  }
}

bool ManyRowsSearch::search_block(const float* x, int64_t count, int64_t* indices) const {
  auto task = task_;
  task.rows = count;
  return nearest_code_prepared(task, *described_, level_, serially, x, indices,
                               task.size / kCodesOfClose);
}

const NearestCodeSearch& ManyRowsSearch::packed() const {
  std::call_once(packs_, [&] {
    if (!packed_) packed_ = std::make_unique<NearestCodeSearch>(task_, level_, serially);
  });
  return *packed_;
}

}  // namespace torchvq::kernels
