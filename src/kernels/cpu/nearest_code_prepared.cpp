#include "kernels/cpu/nearest_code_prepared.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/prepared_scan.h"

namespace torchvq::kernels {
namespace {

// Settling more hits takes longer than a search without bytes.
constexpr int64_t kMostHits = 1 << 20;
constexpr int64_t kMostRows = 191;
constexpr int64_t kFewestRowsOfBytes = 4;
constexpr int64_t kGrain = 1 << 18;  // products per thread
constexpr int64_t kMostRanges = 16;
constexpr int64_t kSettleGrain = 32;  // rows per thread
// Rows with so many codes that float32 cannot tell apart, on average, have duplicates, which other searches drop.
constexpr int64_t kMostUndecided = 8, kUndecidedOfFewRows = 64;
constexpr double kSmallestNorm = 1e-12, kLargestNorm = 1e12;  // of rows
constexpr int64_t kLine = 64 / sizeof(float);                 // floats per cache line

/// Upper bound of half the squared norm of code `k`, the j-th of a panel, minus the centre; 0 for codes that are left out.
float half_square(const NearestCodeTask& task, const PreparedPanel& facts, int64_t k, int64_t j) {
  const float bias = task.bias && k < task.size ? task.bias[k] / 2 : 0.0F;
  const float offset = facts.offsets[j], intercept = facts.intercepts[j];
  const float half = offset + intercept - bias;
  const float lost = (std::abs(offset) + std::abs(intercept) + std::abs(bias)) * 1e-6F + 1e-24F;
  return half < FLT_MAX ? std::max(half, 0.0F) + lost : 0.0F;
}

class PreparedSearch {
 public:
  PreparedSearch(const NearestCodeTask& task, const DescribedCodes& prepared, CpuLevel level,
                 const float* x, std::optional<int64_t> most_close)
      : task_(task),
        prepared_(prepared.codes),
        blocks_(prepared.blocks),
        x_(x),
        most_close_(most_close),
        table_(prepared_scan(level)),
        exact_(nearest_code_exact(level)),
        bytes_(table_.round_row_bytes != nullptr && task.rows >= kFewestRowsOfBytes),
        rows_(static_cast<size_t>(task.rows)),
        reach_(static_cast<size_t>(task.rows)),
        words_((bytes_ ? 1 : 2) * prepared_blocks(task.dim) * task.rows) {}

  bool search(const ParallelFor& parallel_for, int64_t* indices) {
    if (!round_rows()) return false;
    if (!screen(parallel_for)) return false;
    gather_hits();
    return !too_many_close() && settle(parallel_for, indices);
  }

 private:
  /// Result of screening a range of codes.
  struct Found {
    std::vector<float> floors;
    AlignedBuffer<PreparedHit> hits;
    int64_t count = 0;
  };

  bool round_rows() {
    const int64_t padded = prepared_center_floats(task_.dim);
    const int64_t words = words_.size() / task_.rows;
    AlignedBuffer<float> centred(padded);
    AlignedBuffer<int16_t> integers(padded);
    double square = 0;
    for (int64_t d = 0; d < task_.dim; ++d) {
      square +=
          static_cast<double>(prepared_.center()[d]) * static_cast<double>(prepared_.center()[d]);
    }
    const double shift = std::sqrt(square);
    for (int64_t row = 0; row < task_.rows; ++row) {
      const float norm =
          table_.center_row(x_ + row * task_.dim, prepared_.center(), task_.dim, centred.data());
      int32_t* const to = words_.data() + row * words;
      if (!(norm < kLargestNorm) || !(bytes_ || norm > kSmallestNorm)) return false;
      rows_[row] = bytes_ ? table_.round_row_bytes(centred.data(), norm, task_.dim, to)
                          : table_.round_row(centred.data(), norm, task_.dim, integers.data(), to);
      reach_[row] = norm + shift;
    }
    return true;
  }

  bool screen(const ParallelFor& parallel_for) {
    const int64_t panels = prepared_panels(task_.size);
    const auto blocks = static_cast<int64_t>(blocks_.size());
    const int64_t share = (blocks + kMostRanges - 1) / kMostRanges * kBlockPanels;
    const int64_t ranges = (panels + share - 1) / share;
    found_.resize(static_cast<size_t>(ranges));
    const int64_t products = task_.dim * task_.rows * share * kPreparedCodes;
    parallel_for(ranges, 1 + kGrain / products, [&](int64_t begin, int64_t end) {
      Found& found = found_[static_cast<size_t>(begin)];
      found.floors.assign(rows_.size(), -FLT_MAX);
      found.hits = AlignedBuffer<PreparedHit>(
          std::min(task_.rows * (8 + task_.size / 8) + kSpareHits, kMostHits));
      found.count = table_.screen(
          prepared_, blocks_.data(), {rows_.data(), task_.rows, bytes_, found.floors.data()},
          begin * share, std::min(end * share, panels), found.hits.data(), 0, found.hits.size());
    });
    return std::all_of(found_.begin(), found_.end(),
                       [](const Found& found) { return found.count >= 0; });
  }

  /// Keeps the hits that reach the floors of all ranges, sorted by row and then by code.
  void gather_hits() {
    std::vector<float>& floors = found_[0].floors;
    for (const Found& found : found_) {
      for (size_t row = 0; row < found.floors.size(); ++row) {
        floors[row] = std::max(floors[row], found.floors[row]);
      }
    }
    const auto for_each = [&](const auto& take) {
      for (const Found& found : found_) {
        for (int64_t i = 0; i < found.count; ++i) {
          const PreparedHit& hit = found.hits[i];
          const auto row = static_cast<size_t>(hit.row);
          if (hit.score >= floors[row] && hit.code < task_.size) take(row, hit.code);
        }
      }
    };
    ends_.assign(rows_.size() + 1, 0);
    for_each([&](size_t row, int32_t /*code*/) { ++ends_[row + 1]; });
    for (size_t row = 0; row < rows_.size(); ++row) ends_[row + 1] += ends_[row];
    candidates_.resize(static_cast<size_t>(ends_.back()));
    // The candidates of a row begin where those of the previous row end.
    for_each(
        [&](size_t row, int32_t code) { candidates_[static_cast<size_t>(ends_[row]++)] = code; });
  }

  bool too_many_close() const { return most_close_ && ends_.back() > task_.rows * *most_close_; }

  bool settle(const ParallelFor& parallel_for, int64_t* indices) {
    int64_t begin = 0;
    for (int64_t row = 0; row < task_.rows; ++row) {
      // A row without candidates proves that the bytes are not a copy of these codes.
      if (ends_[static_cast<size_t>(row)] == begin) return false;
      begin = ends_[static_cast<size_t>(row)];
    }
    const double bias_bound = largest_bias(task_);
    const int64_t most = kUndecidedOfFewRows + kMostUndecided * task_.rows;
    std::atomic<int64_t> undecided{0};
    parallel_for(task_.rows, kSettleGrain, [&](int64_t first, int64_t last) {
      NearestCodeDecision decision(task_, exact_);
      Candidates candidates;
      for (int64_t row = first; row < last && undecided.load(std::memory_order_relaxed) <= most;
           ++row) {
        undecided += settle_row(row, bias_bound, candidates, decision, indices + row);
      }
    });
    return undecided <= most;
  }

  struct Candidates {
    std::vector<int32_t> codes;
    std::vector<float> distances;
  };

  /// Returns the number of codes between which float64 had to decide.
  int64_t settle_row(int64_t row, double bias_bound, Candidates& candidates,
                     NearestCodeDecision& decision, int64_t* index) const {
    const auto place = static_cast<size_t>(row);
    candidates.codes.assign(candidates_.begin() + (row == 0 ? 0 : ends_[place - 1]),
                            candidates_.begin() + ends_[place]);
    if (candidates.codes.size() > 1) keep_nearest(row, bias_bound, candidates);
    if (candidates.codes.size() == 1) {
      *index = candidates.codes[0];
      return 0;
    }
    decision.decide(x_ + row * task_.dim, candidates.codes, {}, index);
    return static_cast<int64_t>(candidates.codes.size());
  }

  const float* code(int64_t k) const { return task_.codebook + k * task_.dim; }

  /// Keeps only candidates that float32 cannot tell apart from the nearest.
  void keep_nearest(int64_t row, double bias_bound, Candidates& candidates) const {
    constexpr size_t kTogether = 4;
    auto& [codes, distances] = candidates;
    for (const int64_t k : codes) {
      for (int64_t d = 0; d < task_.dim; d += kLine) __builtin_prefetch(code(k) + d);
    }
    distances.resize(codes.size());
    for (size_t i = 0; i < codes.size(); i += kTogether) {
      const size_t count = std::min(kTogether, codes.size() - i);
      const float* at[kTogether] = {};
      for (size_t j = 0; j < count; ++j) at[j] = code(codes[i + j]);
      table_.distances(x_ + row * task_.dim, task_.dim, at, static_cast<int64_t>(count),
                       distances.data() + i);
    }
    for (size_t i = 0; task_.bias && i < codes.size(); ++i) distances[i] += task_.bias[codes[i]];
    const float nearest = *std::min_element(distances.begin(), distances.end());
    const double reach = reach_[static_cast<size_t>(row)];
    const double limit = -limit_of_distance(-nearest, task_.dim, reach * reach, bias_bound);
    size_t kept = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (!(distances[i] > limit)) codes[kept++] = codes[i];
    }
    codes.resize(kept);
  }

  const NearestCodeTask& task_;
  const PreparedCodes& prepared_;
  const std::vector<PreparedBlock>& blocks_;
  const float* x_;
  std::optional<int64_t> most_close_;
  PreparedScan table_;
  NearestCodeExact exact_;
  bool bytes_;
  std::vector<PreparedRow> rows_;
  std::vector<double> reach_;  ///< upper bounds of the norms of the rows
  AlignedBuffer<int32_t> words_;
  std::vector<Found> found_;         ///< at the first of the ranges that were screened together
  std::vector<int64_t> ends_;        ///< end of each row's candidates
  std::vector<int32_t> candidates_;  ///< codes, by row
};

}  // namespace

PreparedScan prepared_scan(CpuLevel level) {
#if defined(TORCHVQ_HAVE_X86_LEVELS)
  if (level >= CpuLevel::kAvx512 && !__builtin_cpu_supports("avx512vnni")) level = CpuLevel::kAvx2;
#endif
  return TORCHVQ_AT_LEVEL(level, prepared_scan)();
}

bool has_prepared(const NearestCodeTask& task, const PreparedCodes& prepared) {
  return task.k == 1 && task.rows <= kMostRows && !task.cosine && task.bias == nullptr &&
         prepared.usable();
}

DescribedCodes::DescribedCodes(const NearestCodeTask& task, const PreparedCodes& prepared)
    : codes(prepared) {
  const int64_t panels = prepared_panels(task.size);
  blocks.resize(static_cast<size_t>((panels + kBlockPanels - 1) / kBlockPanels));
  for (int64_t panel = 0; panel < panels; ++panel) {
    PreparedBlock& block = blocks[static_cast<size_t>(panel / kBlockPanels)];
    const PreparedPanel& facts = codes.facts(panel);
    for (int64_t j = 0; j < kPreparedCodes; ++j) {
      block.slope = std::max(block.slope, facts.slopes[j]);
      block.intercept = std::max(block.intercept, facts.intercepts[j]);
      block.norm = std::max(block.norm, half_square(task, facts, panel * kPreparedCodes + j, j));
    }
  }
  for (PreparedBlock& block : blocks) block.norm = std::sqrt(2 * block.norm) * 1.0001F;
}

bool nearest_code_prepared(const NearestCodeTask& task, const DescribedCodes& prepared,
                           CpuLevel level, const ParallelFor& parallel_for, const float* x,
                           int64_t* indices, std::optional<int64_t> most_close) {
  return PreparedSearch(task, prepared, level, x, most_close).search(parallel_for, indices);
}

}  // namespace torchvq::kernels
