#include "kernels/cpu/nearest_code_unpacked.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/nearest_code_few_rows.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kMostRows = 191;   // more: packing is paid back by coarse screening
constexpr int64_t kFewestDims = 16;  // fewer: taking the bests costs more than packing
constexpr int64_t kMostDims = 1 << 14;
constexpr int64_t kGrain = 1 << 16;        // products per thread
constexpr int64_t kMostRanges = 16;        // of codes, with winners of their own
constexpr int64_t kBlockCodes = 96;        // multiplied by all panels while they are in cache
constexpr int64_t kMostLanes = 16;         // of any instruction set
constexpr double kSmallestSquare = 1e-24;  // below, the norm of a code may have underflowed

/// The largest squared norm and offset of a range of codes.
struct Extent {
  float square = 0, offset = 0;
  bool usable = true;

  void take(const Extent& other) {
    square = std::max(square, other.square);
    offset = std::max(offset, other.offset);
    usable = usable && other.usable;
  }
};

class UnpackedSearch {
 public:
  UnpackedSearch(const NearestCodeTask& task, CpuLevel level, const float* x)
      : task_(task),
        x_(x),
        scan_(nearest_code_scan(level)),
        center_(task.dim + kMostLanes),
        padded_((task.rows + scan_.panel - 1) / scan_.panel * scan_.panel),
        panels_(padded_ * task.dim),
        squares_(padded_),
        scales_(task.size),
        offsets_(task.size),
        exact_(nearest_code_exact(level)),
        decision_(task, exact_) {}

  bool search(const ParallelFor& parallel_for, int64_t* indices) {
    center_rows();
    pack_rows();
    if (!rows_usable()) return false;
    scan(parallel_for);
    return extent_.usable && settle(indices);
  }

 private:
  /// Distances do not depend on the centre, and their error grows with the distance of the rows from it.
  void center_rows() {
    std::fill_n(center_.data(), center_.size(), 0.0F);
    if (task_.cosine) return;
    for (int64_t row = 0; row < task_.rows; ++row) {
      const float* const values = x_ + row * task_.dim;
      for (int64_t d = 0; d < task_.dim; ++d) center_[d] += values[d];
    }
    const auto share = static_cast<float>(1.0 / static_cast<double>(task_.rows));
    for (int64_t d = 0; d < task_.dim; ++d) center_[d] *= share;
  }

  void pack_rows() {
    std::vector<int32_t> every(static_cast<size_t>(task_.rows));
    std::iota(every.begin(), every.end(), 0);
    const CodeList rows = {x_, x_ + task_.rows * task_.dim, task_.dim, every.data(), task_.rows};
    const auto pack = task_.cosine ? scan_.pack_unit_codes : scan_.pack_codes;
    pack(rows, center_.data(), task_.dim, 0, padded_ / scan_.panel, panels_.data(),
         squares_.data());
  }

  bool rows_usable() const {
    double shift = 0;
    for (int64_t d = 0; d < task_.dim; ++d) {
      shift += static_cast<double>(center_[d]) * static_cast<double>(center_[d]);
    }
    return shift < kLargeSquare && std::all_of(
                                       squares_.data(), squares_.data() + task_.rows,
                                       [](double square) { return square < kLargeSquare; });
  }

  /// Each range of codes has a winner of its own, so that a row's best and second best are mostly known by
  /// index.
  void scan(const ParallelFor& parallel_for) {
    const int64_t blocks = (task_.size + kBlockCodes - 1) / kBlockCodes;
    const int64_t share = (blocks + kMostRanges - 1) / kMostRanges;
    ranges_ = (blocks + share - 1) / share;
    results_.resize(static_cast<size_t>(ranges_ * task_.rows));
    std::vector<Extent> extents(static_cast<size_t>(ranges_));
    const int64_t products = task_.dim * task_.rows * share * kBlockCodes;
    parallel_for(ranges_, 1 + kGrain / products, [&](int64_t begin, int64_t end) {
      AlignedBuffer<char> state(scan_.state_bytes(padded_ / scan_.lanes));
      for (int64_t range = begin; range < end; ++range) {
        scan_.start_unpacked(task_.rows, state.data());
        for (int64_t block = range * share; block < std::min((range + 1) * share, blocks);
             ++block) {
          scan_block(block * kBlockCodes, state.data(), extents[static_cast<size_t>(range)]);
        }
        scan_.finish_unpacked(task_.rows, state.data(), results_.data() + range * task_.rows);
      }
    });
    for (const Extent& extent : extents) extent_.take(extent);
  }

  UnpackedCodes codes(int64_t first, int64_t count) const {
    return {task_.codebook + first * task_.dim,
            first,
            count,
            task_.dim,
            scales_.data() + first,
            offsets_.data() + first};
  }

  void scan_block(int64_t first, void* state, Extent& extent) {
    const int64_t count = std::min(kBlockCodes, task_.size - first);
    measure(first, count, extent);
    if (extent.usable) scan_.scan_unpacked(codes(first, count), panels_.data(), task_.rows, state);
  }

  void measure(int64_t first, int64_t count, Extent& extent) {
    float squares[kBlockCodes];
    scan_.unpacked_norms(task_.codebook + first * task_.dim, count, task_.dim, center_.data(),
                         squares, offsets_.data() + first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = first + i;
      const bool usable = squares[i] < kLargeSquare && offsets_[k] < kLargeSquare &&
                          (!task_.cosine || squares[i] > kSmallestSquare);
      const auto bias = static_cast<float>(task_.bias_of(k));
      scales_[k] = task_.cosine ? 1 / std::sqrt(squares[i]) : 1.0F;
      offsets_[k] = (task_.cosine ? 0.0F : offsets_[k] / 2) + bias;
      const float offset = task_.cosine ? std::abs(bias) : offsets_[k] - std::min(2 * bias, 0.0F);
      extent.take(
          {task_.cosine ? 1.0F : squares[i], offset, usable && std::abs(bias) < kLargeSquare});
    }
  }

  /// How far a score can lie from the one that decides, up to a constant of the row: the products of
  /// the row less the centre with codes that are not centred, and, in float64, of neither centred.
  ScoreError error() const {
    const double scan = chain_error(task_.dim + 16, kFloatUnit);
    const double decision = chain_error(task_.dim + 16, kDoubleUnit);
    const double tiny = kFloatTiny * static_cast<double>(task_.dim + 16);
    const double norm = std::sqrt(static_cast<double>(extent_.square)) * (1 + 1e-3);
    const double offset = static_cast<double>(extent_.offset) * (1 + 1e-3);
    double shift = 0;
    for (int64_t d = 0; d < task_.dim; ++d) {
      shift += static_cast<double>(center_[d]) * static_cast<double>(center_[d]);
    }
    shift = std::sqrt(shift);
    // A cosine code is divided by a norm that has an error of its own.
    const double products = (task_.cosine ? 2.0 : 1.0) * scan * norm;
    return {products + decision * norm + tiny,
            scan * offset + decision * (norm * (norm + shift) + offset) + tiny * (1 + norm)};
  }

  bool settle(int64_t* indices) {
    const ScoreError bound = error();
    for (int64_t row = 0; row < task_.rows; ++row) {
      const double norm = std::sqrt(squares_[row]) * (1 + 1e-6);
      settle_row(row, kReach * (bound.slope * norm + bound.intercept), indices);
    }
    if (static_cast<int64_t>(open_.size()) > 2 + task_.rows / 8) return false;
    for (size_t first = 0; first < open_.size(); first += static_cast<size_t>(scan_.lanes)) {
      decide(first, std::min(first + static_cast<size_t>(scan_.lanes), open_.size()), indices);
    }
    return true;
  }

  void settle_row(int64_t row, double reach, int64_t* indices) {
    const auto of_range = [&](int64_t range) -> const ScanResult& {
      return results_[static_cast<size_t>(range * task_.rows + row)];
    };
    float best = -HUGE_VALF, runner_up = -HUGE_VALF;
    for (int64_t range = 0; range < ranges_; ++range) {
      best = std::max(best, of_range(range).best);
      runner_up = std::max(runner_up, of_range(range).runner_up);
    }
    const double limit = best - reach;
    if (runner_up >= limit) {
      open_.push_back(row);
      limits_.push_back(limit);
      return;
    }
    candidates_.clear();
    for (int64_t range = 0; range < ranges_; ++range) {
      if (of_range(range).best >= limit) candidates_.push_back(of_range(range).position);
    }
    if (candidates_.size() == 1) {
      indices[row] = candidates_[0];
    } else {
      decision_.decide(x_ + row * task_.dim, candidates_, {}, indices + row);
    }
  }

  /// Scores the rows open_[first .. last) once more, and lets the exact scores of their candidates decide.
  void decide(size_t first, size_t last, int64_t* indices) {
    AlignedBuffer<float> panel(scan_.panel * task_.dim), scores(scan_.lanes * task_.size);
    std::fill_n(panel.data(), panel.size(), 0.0F);
    for (size_t i = first; i < last; ++i) {
      const int64_t row = open_[i];
      const float* const from =
          panels_.data() + row / scan_.panel * scan_.panel * task_.dim + row % scan_.panel;
      for (int64_t d = 0; d < task_.dim; ++d) {
        panel[d * scan_.panel + static_cast<int64_t>(i - first)] = from[d * scan_.panel];
      }
    }
    scan_.score_unpacked(codes(0, task_.size), panel.data(), scores.data());
    for (size_t i = first; i < last; ++i) {
      candidates_.clear();
      for (int64_t k = 0; k < task_.size; ++k) {
        if (scores[k * scan_.lanes + static_cast<int64_t>(i - first)] >= limits_[i]) {
          candidates_.push_back(static_cast<int32_t>(k));
        }
      }
      decision_.decide(x_ + open_[i] * task_.dim, candidates_, {}, indices + open_[i]);
    }
  }

  const NearestCodeTask& task_;
  const float* x_;
  NearestCodeScan scan_;
  AlignedBuffer<float> center_;
  int64_t padded_;
  AlignedBuffer<float> panels_;
  AlignedBuffer<double> squares_;
  AlignedBuffer<float> scales_, offsets_;
  Extent extent_;
  int64_t ranges_ = 0;
  std::vector<ScanResult> results_;  ///< (ranges, rows)
  NearestCodeExact exact_;
  NearestCodeDecision decision_;
  std::vector<int32_t> candidates_;
  std::vector<int64_t> open_;   ///< rows whose second best is not known by index,
  std::vector<double> limits_;  ///< and what a candidate's score must reach
};

}  // namespace

bool worth_unpacked(const NearestCodeTask& task) {
  return has_few_rows(task) || (task.k == 1 && task.rows <= kMostRows && task.dim >= kFewestDims &&
                                task.dim <= kMostDims);
}

bool nearest_code_unpacked(const NearestCodeTask& task, CpuLevel level,
                           const ParallelFor& parallel_for, const float* x, int64_t* indices) {
  if (has_few_rows(task)) return nearest_code_few_rows(task, level, parallel_for, x, indices);
  return UnpackedSearch(task, level, x).search(parallel_for, indices);
}

}  // namespace torchvq::kernels
