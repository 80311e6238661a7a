#include "kernels/cpu/nearest_code_unpacked.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/nearest_code_few_rows.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kMostRows = 191;   // above, coarse screening pays for packing
constexpr int64_t kFewestDims = 16;  // below, updating the best scores costs more than packing
constexpr int64_t kMostDims = 1 << 14;
constexpr int64_t kGrain = 1 << 16;      // products per thread
constexpr int64_t kMostRanges = 16;      // of codes, each with its own winners
constexpr int64_t kBlockCodes = 96;      // in cache while all panels are multiplied with them
constexpr int64_t kMostLanes = 16;       // of any instruction set
constexpr int64_t kMostCandidates = 2;   // per code, of all rows: more take as long as packing
constexpr double kSmallestNorm = 1e-12;  // below, the square of a norm may have underflowed
constexpr double kLargeNorm = 0x1p60;    // the square is below kLargeSquare
constexpr double kSlack = kReach / 2;

/// Codes of float64 are rounded to float32, less the centre, a block at a time.
template <typename T>
class UnpackedSearch {
 public:
  UnpackedSearch(const NearestCodeTaskOf<T>& task, CpuLevel level, const T* x)
      : task_(task),
        x_(x),
        scan_(nearest_code_scan(level)),
        reader_(of_type<T>(scan_)),
        center_(task.dim + kMostLanes),
        padded_((task.rows + scan_.panel - 1) / scan_.panel * scan_.panel),
        panels_(padded_ * task.dim),
        squares_(padded_),
        norms_(padded_),
        scales_(task.size),
        slopes_(task.size),
        intercepts_(task.size),
        offsets_(task.size),
        exact_(nearest_code_exact(level)),
        decision_(task, exact_),
        scan_error_(chain_error(task.dim + 16, kFloatUnit)),
        decision_error_(chain_error(task.dim + 16, kDoubleUnit)),
        tiny_(kFloatTiny * static_cast<double>(task.dim + 16)) {}

  bool search(const ParallelFor& parallel_for, int64_t* indices) {
    center_rows();
    pack_rows();
    if (!rows_usable()) return false;
    scan(parallel_for);
    return codes_usable_ && settle(indices);
  }

 private:
  /// Centres on the mean of the rows: any centre is correct, and errors grow with the
  /// distance of the rows from it.
  void center_rows() {
    std::fill_n(center_.data(), center_.size(), 0.0F);
    if (task_.cosine) return;
    for (int64_t row = 0; row < task_.rows; ++row) {
      const T* const values = x_ + row * task_.dim;
      for (int64_t d = 0; d < task_.dim; ++d) center_[d] += static_cast<float>(values[d]);
    }
    const auto share = static_cast<float>(1.0 / static_cast<double>(task_.rows));
    for (int64_t d = 0; d < task_.dim; ++d) center_[d] *= share;
  }

  void pack_rows() {
    std::vector<int32_t> every(static_cast<size_t>(task_.rows));
    std::iota(every.begin(), every.end(), 0);
    const CodeListOf<T> rows = {x_, x_ + task_.rows * task_.dim, task_.dim, every.data(),
                                task_.rows};
    const auto pack = task_.cosine ? reader_.pack_unit_codes : reader_.pack_codes;
    pack(rows, center_.data(), task_.dim, 0, padded_ / scan_.panel, panels_.data(),
         squares_.data());
  }

  /// Whether float32 can represent the rows; sets their norms.
  bool rows_usable() {
    std::fill_n(norms_.data(), norms_.size(), 0.0F);
    double square = 0;
    for (int64_t d = 0; d < task_.dim; ++d) {
      square += static_cast<double>(center_[d]) * static_cast<double>(center_[d]);
    }
    shift_ = std::sqrt(square);
    bool usable = square < kLargeSquare;
    for (int64_t row = 0; row < task_.rows; ++row) {
      usable = usable && squares_[row] < kLargeSquare && has_norm(row);
      norms_[row] = static_cast<float>(std::sqrt(squares_[row]) * (1 + 1e-6));
    }
    return usable;
  }

  /// Whether the contract's norm of a row is what pack_unit_codes took it for; underflow differs.
  bool has_norm(int64_t row) const {
    if (!kWide || !task_.cosine) return true;
    const double square = squared_norm(x_ + row * task_.dim, task_.dim);
    return square == 0 || (square > kLeastWideSquare && square < kMostWideSquare);
  }

  /// Each range of codes has its own winner, so the indices of a row's best codes are usually
  /// known without a second scan.
  void scan(const ParallelFor& parallel_for) {
    const int64_t blocks = (task_.size + kBlockCodes - 1) / kBlockCodes;
    const int64_t share = (blocks + kMostRanges - 1) / kMostRanges;
    ranges_ = (blocks + share - 1) / share;
    std::vector<char> usable(static_cast<size_t>(ranges_), 1);
    results_.resize(static_cast<size_t>(ranges_ * task_.rows));
    const int64_t products = task_.dim * task_.rows * share * kBlockCodes;
    parallel_for(ranges_, 1 + kGrain / products, [&](int64_t begin, int64_t end) {
      AlignedBuffer<char> state(scan_.state_bytes(padded_ / scan_.lanes));
      AlignedBuffer<float> rounded(kWide ? kBlockCodes * task_.dim : 0);
      for (int64_t range = begin; range < end; ++range) {
        scan_.start_unpacked(task_.rows, state.data());
        const int64_t last = std::min((range + 1) * share, blocks);
        bool all = true;
        for (int64_t block = range * share; all && block < last; ++block) {
          all = scan_block(block * kBlockCodes, rounded.data(), state.data());
        }
        if (!all) usable[static_cast<size_t>(range)] = 0;
        scan_.finish_unpacked(task_.rows, state.data(), results_.data() + range * task_.rows);
      }
    });
    codes_usable_ = std::all_of(usable.begin(), usable.end(), [](char own) { return own != 0; });
  }

  UnpackedCodes codes(const float* values, int64_t first, int64_t count) const {
    return {values,
            first,
            count,
            task_.dim,
            scales_.data() + first,
            slopes_.data() + first,
            offsets_.data() + first};
  }

  /// The values of a block of codes that are multiplied: those of float64 are written to `rounded`. With
  /// `norms`, these and, as offsets, the squared norms of their differences from the centre.
  const float* values_of(int64_t first, int64_t count, float* rounded, float* norms) {
    const T* const codes = task_.codebook + first * task_.dim;
    float* const offsets = offsets_.data() + first;
    if constexpr (!kWide) {
      if (norms) {
        scan_.unpacked_norms(codes, count, task_.dim, center_.data(), norms, offsets);
      }
      return codes;
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const T* const code = codes + i * task_.dim;
        double square = 0;
        reader_.pack_rows(&code, 1, task_.dim, center_.data(), task_.dim, rounded + i * task_.dim,
                          &square);
        if (!norms) continue;
        norms[i] = static_cast<float>(std::sqrt(square));
        offsets[i] = static_cast<float>(square);
      }
      return rounded;
    }
  }

  /// False for codes that float32 cannot represent.
  bool scan_block(int64_t first, float* rounded, void* state) {
    const int64_t count = std::min(kBlockCodes, task_.size - first);
    float norms[kBlockCodes];
    const float* const values = values_of(first, count, rounded, norms);
    if (!measure(first, count, norms)) return false;
    scan_.scan_unpacked(codes(values, first, count), {panels_.data(), norms_.data(), task_.rows},
                        state);
    return true;
  }

  /// Scales, offsets and errors of a block of codes. False for codes that float32 cannot represent.
  bool measure(int64_t first, int64_t count, const float* norms) {
    const float* const offsets = offsets_.data() + first;
    bool usable = true;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = first + i;
      const auto bias = static_cast<float>(task_.bias_of(k));
      const float norm = norms[i], half = task_.cosine ? 0.0F : offsets[i] / 2;
      usable = usable && norm < kLargeNorm && half < kLargeSquare &&
               std::abs(bias) < kLargeSquare && (!task_.cosine || norm > kSmallestNorm);
      scales_[k] = task_.cosine ? 1 / norm : 1.0F;
      const ScoreError error =
          error_of(task_.cosine ? 1.0 : norm * (1 + 1e-3), half + std::abs(bias));
      slopes_[k] = static_cast<float>(error.slope);
      intercepts_[k] = static_cast<float>(error.intercept);
      offsets_[k] = half + bias - intercepts_[k];
    }
    return usable;
  }

  /// Bound on the difference between a code's screening and deciding scores, up to a constant per
  /// row. Screening multiplies a centred row with an uncentred code, or one of float64 with a centred
  /// code; the deciding float64 products centre neither.
  ScoreError error_of(double norm, double offset) const {
    const double whole = kWide ? norm + shift_ : norm;
    // A cosine code is divided by its norm, which has a rounding error too.
    const double products = (task_.cosine ? 2.0 : 1.0) * scan_error_ * norm;
    return {kSlack * (products + decision_error_ * whole + tiny_),
            kSlack * (scan_error_ * offset + decision_error_ * (whole * (whole + shift_) + offset) +
                      tiny_ * (1 + norm))};
  }

  bool settle(int64_t* indices) {
    for (int64_t row = 0; row < task_.rows; ++row) settle_row(row, indices);
    if (static_cast<int64_t>(open_.size()) >
        std::max<int64_t>(2 + task_.rows / 8, 2 * scan_.lanes)) {
      return false;
    }
    int64_t left = kMostCandidates * task_.size;
    for (size_t first = 0; first < open_.size(); first += static_cast<size_t>(scan_.lanes)) {
      const auto last = std::min(first + static_cast<size_t>(scan_.lanes), open_.size());
      if (!decide(first, last, left, indices)) return false;
    }
    return true;
  }

  /// Scores are upper bounds. The lower bound of the best one is the limit that
  /// other candidates must reach.
  void settle_row(int64_t row, int64_t* indices) {
    const auto of_range = [&](int64_t range) -> const ScanResult& {
      return results_[static_cast<size_t>(range * task_.rows + row)];
    };
    const ScanResult* best = &of_range(0);
    float runner_up = -HUGE_VALF;
    for (int64_t range = 0; range < ranges_; ++range) {
      if (of_range(range).best > best->best) best = &of_range(range);
      runner_up = std::max(runner_up, of_range(range).runner_up);
    }
    const double norm = norms_[row], slope = slopes_[best->position];
    const double limit = best->best - 2 * (slope * norm + intercepts_[best->position]);
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

  /// Scores rows open_[first .. last) once more and decides among their candidates by exact scores.
  /// False if there are more than `left` candidates.
  bool decide(size_t first, size_t last, int64_t& left, int64_t* indices) {
    AlignedBuffer<float> panel(scan_.panel * task_.dim), scores(scan_.lanes * task_.size);
    AlignedBuffer<float> norms(scan_.panel), rounded(kWide ? kBlockCodes * task_.dim : 0);
    std::fill_n(panel.data(), panel.size(), 0.0F);
    std::fill_n(norms.data(), norms.size(), 0.0F);
    for (size_t i = first; i < last; ++i) {
      const int64_t row = open_[i];
      const float* const from =
          panels_.data() + row / scan_.panel * scan_.panel * task_.dim + row % scan_.panel;
      norms[static_cast<int64_t>(i - first)] = norms_[row];
      for (int64_t d = 0; d < task_.dim; ++d) {
        panel[d * scan_.panel + static_cast<int64_t>(i - first)] = from[d * scan_.panel];
      }
    }
    for (int64_t k = 0; k < task_.size; k += kBlockCodes) {
      const int64_t count = std::min(kBlockCodes, task_.size - k);
      scan_.score_unpacked(codes(values_of(k, count, rounded.data(), nullptr), k, count),
                           {panel.data(), norms.data(), static_cast<int64_t>(last - first)},
                           scores.data());
    }
    left -= count_candidates(scores.data(), limits_.data() + first, last - first);
    if (left < 0) return false;
    for (size_t i = first; i < last; ++i) {
      candidates_.clear();
      for (int64_t k = 0; k < task_.size; ++k) {
        if (scores[k * scan_.lanes + static_cast<int64_t>(i - first)] >= limits_[i]) {
          candidates_.push_back(static_cast<int32_t>(k));
        }
      }
      decision_.decide(x_ + open_[i] * task_.dim, candidates_, {}, indices + open_[i]);
    }
    return true;
  }

  int64_t count_candidates(const float* scores, const double* limits, size_t rows) const {
    int64_t found = 0;
    for (int64_t k = 0; k < task_.size; ++k) {
      for (size_t row = 0; row < rows; ++row) {
        if (scores[k * scan_.lanes + static_cast<int64_t>(row)] >= limits[row]) ++found;
      }
    }
    return found;
  }

  static constexpr bool kWide = std::is_same_v<T, double>;

  const NearestCodeTaskOf<T>& task_;
  const T* x_;
  NearestCodeScan scan_;
  const NearestCodeReader<T>& reader_;
  AlignedBuffer<float> center_;
  int64_t padded_;
  AlignedBuffer<float> panels_;
  AlignedBuffer<double> squares_;
  AlignedBuffer<float> norms_;  ///< of the rows
  double shift_ = 0;            ///< norm of their centre
  AlignedBuffer<float> scales_, slopes_, intercepts_, offsets_;
  bool codes_usable_ = true;
  int64_t ranges_ = 0;
  std::vector<ScanResult> results_;  ///< (ranges, rows)
  NearestCodeExact exact_;
  NearestCodeDecisionOf<T> decision_;
  double scan_error_, decision_error_, tiny_;
  std::vector<int32_t> candidates_;
  std::vector<int64_t> open_;   ///< rows with candidates that the scan did not keep by index,
  std::vector<double> limits_;  ///< and the limit that their candidates must reach
};

}  // namespace

template <typename T>
bool worth_unpacked(const NearestCodeTaskOf<T>& task) {
  return has_few_rows(task) || (task.k == 1 && task.rows <= kMostRows && task.dim >= kFewestDims &&
                                task.dim <= kMostDims);
}

template bool worth_unpacked(const NearestCodeTaskOf<float>&);
template bool worth_unpacked(const NearestCodeTaskOf<double>&);

template <typename T>
bool nearest_code_unpacked(const NearestCodeTaskOf<T>& task, CpuLevel level,
                           const ParallelFor& parallel_for, const T* x, int64_t* indices) {
  if (has_few_rows(task)) return nearest_code_few_rows(task, level, parallel_for, x, indices);
  return UnpackedSearch<T>(task, level, x).search(parallel_for, indices);
}
template bool nearest_code_unpacked(const NearestCodeTaskOf<float>&, CpuLevel, const ParallelFor&,
                                    const float*, int64_t*);
template bool nearest_code_unpacked(const NearestCodeTaskOf<double>&, CpuLevel, const ParallelFor&,
                                    const double*, int64_t*);

}  // namespace torchvq::kernels
