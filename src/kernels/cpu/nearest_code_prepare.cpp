// The part of nearest_code that runs once per codebook: classifies codes, centres and packs them,
// and bounds the errors of their scores.
#include "kernels/cpu/nearest_code_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/nearest_code_bound.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kPackGrain = 1 << 15;  // values per task: some 20 microseconds
constexpr int64_t kRowsWorthUniqueness = 10;
constexpr int64_t kMostLanes = 16;  // of any instruction set
constexpr double kFar = 16;         // a norm beyond this many medians is left out of the centre
constexpr int64_t kLongestOwnError = 1 << 20;  // beyond, an error may not be a float32 number
constexpr int64_t kRowsWorthCoarse = 192;  // for fewer, packing the codes twice does not pay off
constexpr int64_t kFewestCoarse = 24, kMostCoarse = 1 << 14;  // dimensions
constexpr int64_t kFewestTiled = 65;  // dimensions: a single tile of depth costs more than it saves
constexpr double kDistant = 4;  // norms beyond this many medians get error bounds of their own

/// Finds repeated codes: equal values (0 equals -0) and equal bias.
template <typename T>
class SeenCodes {
 public:
  SeenCodes(const NearestCodeTaskOf<T>& task, int64_t size) : task_(task) {
    size_t capacity = 16;
    while (capacity < 2 * static_cast<size_t>(size)) capacity *= 2;
    slots_.assign(capacity, -1);
  }

  bool insert(int32_t k, uint32_t hash) {
    const size_t mask = slots_.size() - 1;
    size_t slot = (hash * 0x9E3779B97F4A7C15ull >> 20) & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      if (equal(slots_[slot], k)) return false;
    }
    slots_[slot] = k;
    return true;
  }

 private:
  bool equal(int32_t a, int32_t b) const {
    const T* left = task_.codebook + a * task_.dim;
    return std::equal(left, left + task_.dim, task_.codebook + b * task_.dim) &&
           (task_.bias == nullptr || task_.bias[a] == task_.bias[b]);
  }

  const NearestCodeTaskOf<T>& task_;
  std::vector<int32_t> slots_;
};

CpuLevel screening_level(int64_t dim, CpuLevel level) {
  return dim < kFewestTiled ? std::min(level, CpuLevel::kAvx512) : level;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

template <typename T>
NearestCodeSearchOf<T>::NearestCodeSearchOf(const NearestCodeTaskOf<T>& task, CpuLevel level,
                                            const ParallelFor& parallel_for)
    : task_(task),
      level_(level),
      scan_(nearest_code_scan(screening_level(task.dim, level))),
      exact_(nearest_code_exact(level)),
      // Codes that compete in groups cost one exact decision of the winner's group per row, and save
      // three operations per vector of codes.
      groups_(task.k == 1 && task.size >= 40 * task.dim && scan_.vectors > 1),
      center_(task.dim + kMostLanes) {
  std::fill_n(center_.data(), center_.size(), 0.0f);
  classify(parallel_for);
  pack(parallel_for);
  bound_scores();
  make_coarse();
}

template <typename T>
void NearestCodeSearchOf<T>::make_coarse() {
  const auto count = static_cast<int64_t>(codes_.screened.size());
  const bool wanted = task_.k == 1 && task_.rows >= kRowsWorthCoarse && !own_errors_ &&
                      task_.dim >= kFewestCoarse && task_.dim <= kMostCoarse && count > 0;
  if (!scan_.coarse_scan || !wanted) return;
  const double norm = std::sqrt(*std::max_element(squares_.data(), squares_.data() + count));
  coarse_scale_ = coarse_scale(norm * (1 + 1e-6));
  if (coarse_scale_ == 0) return;
  coarse_norm_ = norm;
  coarse_ = AlignedBuffer<int32_t>(panel_count_ * scan_.panel * scan_.coarse_words(task_.dim));
  coarse_rounding_ = coarse_rounding(scan_.coarse_codes(panels_.data(), panel_count_, task_.dim,
                                                        depth_, coarse_scale_, coarse_.data()));
  coarse_pays_.store(true, std::memory_order_relaxed);
}

/// Whether float32 can represent the scores of a finite code, of whose values this is the sum of squares.
template <typename T>
bool NearestCodeSearchOf<T>::screenable(int64_t code, T square) const {
  if (!task_.cosine) return square < kLargeSquare;
  if (kWide) return square == 0 || (square > kLeastWideSquare && square < kMostWideSquare);
  return square < kLargeSquare || all_finite(task_.codebook + code * task_.dim, task_.dim);
}

template <typename T>
void NearestCodeSearchOf<T>::classify(const ParallelFor& parallel_for) {
  std::vector<T> squares(static_cast<size_t>(task_.size));
  std::vector<uint32_t> hash(static_cast<size_t>(task_.size));
  parallel_for(task_.size, 1 + 4 * kPackGrain / task_.dim, [&](int64_t begin, int64_t end) {
    reader().code_facts(code_list({}), begin, end, squares.data(), hash.data());
  });
  // The lowest index of equal codes wins anyway; keeping the others would make
  // every row near them a tie.
  const bool unique = task_.k == 1 && task_.rows >= kRowsWorthUniqueness;
  SeenCodes<T> seen(task_, unique ? task_.size : 0);
  codes_.screened.reserve(static_cast<size_t>(task_.size));
  for (int32_t k = 0; k < task_.size; ++k) {
    const T bias = task_.bias ? task_.bias[k] : T(0);
    if (screenable(k, squares[k]) && std::abs(bias) < kLargeSquare) {
      if (!unique || seen.insert(k, hash[k])) codes_.screened.push_back(k);
    } else if (!std::isfinite(bias) || !all_finite(task_.codebook + k * task_.dim, task_.dim)) {
      codes_.excluded.push_back(k);
    } else {
      codes_.set_aside.push_back(k);
    }
  }
}

template <typename T>
CodeListOf<T> NearestCodeSearchOf<T>::code_list(const std::vector<int32_t>& codes) const {
  return {task_.codebook, task_.codebook + task_.size * task_.dim, task_.dim, codes.data(),
          static_cast<int64_t>(codes.size())};
}

template <typename T>
void NearestCodeSearchOf<T>::average(const std::vector<int32_t>& codes) {
  std::fill_n(center_.data(), task_.dim, 0.0f);
  const auto count = static_cast<int64_t>(codes.size());
  if (count == 0) return;
  reader().add_codes(code_list(codes), 0, count, center_.data());
  // Any centre is correct; the mean keeps the bound small.
  const float scale = 1.0f / static_cast<float>(count);
  for (int64_t d = 0; d < task_.dim; ++d) center_[d] *= scale;
}

template <typename T>
void NearestCodeSearchOf<T>::pack_panels(int64_t depth, const ParallelFor& parallel_for) {
  const CodeListOf<T> codes = code_list(codes_.screened);
  depth_ = depth;
  panel_count_ = (codes.count + scan_.panel - 1) / scan_.panel;
  if (panels_.size() < panel_count_ * scan_.panel * depth) {
    panels_ = AlignedBuffer<float>(panel_count_ * scan_.panel * depth);
    squares_ = AlignedBuffer<double>(panel_count_ * scan_.panel);
  }
  parallel_for(panel_count_, 1 + kPackGrain / (scan_.panel * depth),
               [&](int64_t begin, int64_t end) {
                 if (task_.cosine) {
                   reader().pack_unit_codes(codes, center_.data(), depth, begin, end,
                                            panels_.data(), squares_.data());
                 } else {
                   reader().pack_codes(codes, center_.data(), depth, begin, end, panels_.data(),
                                       squares_.data());
                 }
               });
}

template <typename T>
void NearestCodeSearchOf<T>::pack(const ParallelFor& parallel_for) {
  const auto& screened = codes_.screened;
  if (!task_.cosine) average(screened);
  pack_panels(task_.dim, parallel_for);
  if (task_.cosine || screened.empty()) return;

  const auto end = [&] { return squares_.data() + screened.size(); };
  const auto squares = [&] { return std::vector<double>(squares_.data(), end()); };
  const auto largest = [&] { return *std::max_element(squares_.data(), end()); };
  const double mean =
      std::accumulate(squares_.data(), end(), 0.0) / static_cast<double>(screened.size());
  if (largest() <= kDistant * kDistant * mean) return;
  double middle = median(squares());
  // A few distant codes would pull the centre towards them and loosen the bound of all codes.
  for (int round = 0; round < 2 && largest() > kFar * kFar * middle; ++round) {
    std::vector<int32_t> near;
    for (size_t p = 0; p < screened.size(); ++p) {
      if (squares_[p] <= kDistant * kDistant * middle) near.push_back(screened[p]);
    }
    average(near);
    pack_panels(task_.dim, parallel_for);
    middle = median(squares());
  }
  own_errors_ = largest() > kDistant * kDistant * middle && task_.dim < kLongestOwnError;
  if (own_errors_) pack_panels(task_.dim + 1, parallel_for);
}

template <typename T>
void NearestCodeSearchOf<T>::bound_scores() {
  const auto count = static_cast<int64_t>(codes_.screened.size());
  double shift = 0, largest = 0, offset = 0;
  for (int64_t d = 0; d < task_.dim; ++d) shift += static_cast<double>(center_[d]) * center_[d];
  shift = std::sqrt(shift);
  for (int64_t p = 0; p < count; ++p) {
    largest = std::max(largest, squares_[p]);
    offset = std::max(offset, std::abs(task_.bias_of(codes_.screened[p])));
  }
  const auto slack = [&](int64_t p) -> float& {
    return panels_[(p / scan_.panel * depth_ + task_.dim) * scan_.panel + p % scan_.panel];
  };
  half_norms_ = AlignedBuffer<float>(panel_count_ * scan_.panel);
  std::fill_n(half_norms_.data(), half_norms_.size(), HUGE_VALF);
  errors_.assign(static_cast<size_t>(half_norms_.size()),
                 score_error(task_.dim, std::sqrt(largest), offset, shift));
  if (own_errors_) {
    for (int64_t p = 0; p < half_norms_.size(); ++p) slack(p) = 0.0f;
  }
  for (int64_t p = 0; p < count; ++p) {
    const double code_bias = task_.bias_of(codes_.screened[p]);
    const double half_norm = (task_.cosine ? 0.0 : squares_[p] / 2) + code_bias;
    half_norms_[p] = static_cast<float>(half_norm);
    if (own_errors_) {
      // The score plus its own error is an upper bound of the true score, at the
      // cost of one more dimension.
      errors_[p] = score_error(task_.dim, std::sqrt(squares_[p]), std::abs(code_bias), shift);
      half_norms_[p] =
          std::nextafter(static_cast<float>(half_norm - errors_[p].intercept), -HUGE_VALF);
      slack(p) = static_cast<float>(errors_[p].slope * 1.000001);
    }
  }
  bound_set_aside();
}

template <typename T>
void NearestCodeSearchOf<T>::bound_set_aside() {
  for (const auto k : codes_.set_aside) {
    double square = 0;
    for (int64_t d = 0; d < task_.dim && !task_.cosine; ++d) {
      const double value = static_cast<double>(task_.codebook[k * task_.dim + d]) - center_[d];
      square += value * value;
    }
    set_aside_norm_ = std::min(set_aside_norm_, task_.cosine ? 1.0 : std::sqrt(square));
    set_aside_bias_ = std::min(set_aside_bias_, task_.bias_of(k));
  }
}

template NearestCodeSearchOf<float>::NearestCodeSearchOf(const NearestCodeTaskOf<float>&, CpuLevel,
                                                         const ParallelFor&);
template NearestCodeSearchOf<double>::NearestCodeSearchOf(const NearestCodeTaskOf<double>&,
                                                          CpuLevel, const ParallelFor&);

}  // namespace torchvq::kernels
