// The part of nearest_code that runs per row: scans a block of rows, certifies
// winners, decides the rest.
#include "kernels/cpu/nearest_code_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace torchvq::kernels {
namespace {

constexpr int64_t kCoarseRows = 32;  // coarse_scan reads rows in multiples of this

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

/// Rows that are searched together, and their scratch memory; one per call of search().
template <typename T>
struct NearestCodeSearchOf<T>::Block {
  Block(const NearestCodeSearchOf& search, int64_t rows)
      : packed(rows * search.depth_),
        state(search.task_.k == 1 ? search.scan_.state_bytes(rows) : 0),
        coarse(search.coarse_.size() > 0
                   ? round_up(rows, kCoarseRows) * search.scan_.coarse_words(search.task_.dim)
                   : 0),
        open_rows(search.scan_.tile_rows * search.depth_),
        scores(search.scan_.tile_rows * search.panel_count_ * search.scan_.panel),
        decision(search.task_, search.exact_),
        pointers(static_cast<size_t>(rows)),
        scales(static_cast<size_t>(rows)),
        units(static_cast<size_t>(rows)),
        errors(static_cast<size_t>(rows)),
        norms(static_cast<size_t>(rows)),
        results(static_cast<size_t>(rows)),
        places(static_cast<size_t>(search.panel_count_ * search.scan_.panel)) {}

  const T* x = nullptr;  ///< (count, dim), as given
  int64_t count = 0;
  int64_t* indices = nullptr;  ///< (count, k)

  AlignedBuffer<float> packed;
  AlignedBuffer<char> state;
  AlignedBuffer<int32_t> coarse;   ///< rows of coarse screening
  bool coarsely = false;           ///< whether the block was scanned coarsely
  AlignedBuffer<float> open_rows;  ///< packed rows of `open`
  AlignedBuffer<float> scores;
  NearestCodeDecisionOf<T> decision;
  std::vector<const T*> pointers;
  std::vector<float> scales, units, errors;  ///< of coarse rows
  std::vector<double>
      norms;  ///< of the packed rows, rounded up; negative if the row cannot be screened
  std::vector<ScanResult> results;
  std::vector<int32_t> places;
  std::vector<int64_t>
      open;  ///< rows whose winner is not certain, and what a candidate's score must reach
  std::vector<double> limits;
  const T* opened = nullptr;  ///< the row that was opened last, in this block or an earlier one
  const int64_t* opened_index = nullptr;                     ///< where its index is written
  std::vector<std::pair<int64_t, const int64_t*>> repeated;  ///< rows equal to it, and its index
  std::vector<int32_t> candidates;  ///< codes among which to decide, in order of index
  std::vector<float> floors;        ///< scores minus their errors
  KthLargest kth_largest;
  std::vector<int64_t> left;  ///< rows of float64 for NearestCodeWideSearch
};

namespace {

/// Rows of a block, whose running bests stay in the first-level cache. Vectors of thousands of features get no smaller
/// blocks: fewer packed rows would stay in the second level, but every block reads all codes from the third.
constexpr int64_t kBlockRows = 96;

/// To decide on one row and one code in float64 takes some four times as long as in the packed search of
/// NearestCodeWideSearch, so a row with more candidates than a quarter of the codes is left to that.
constexpr int64_t kSharePairs = 4;
constexpr int64_t kTrial = 8;  // with so few open rows it is too early to judge

}  // namespace

template <typename T>
void NearestCodeSearchOf<T>::search(const T* x, int64_t count, int64_t* indices) const {
  if (count == 0) return;
  const int64_t tile = scan_.tile_rows;
  Block block(*this, std::min(kBlockRows, round_up(count, tile)));
  int64_t begin = 0;
  for (; begin < count && screening_pays_.load(std::memory_order_relaxed); begin += kBlockRows) {
    block.x = x + begin * task_.dim;
    block.count = std::min(kBlockRows, count - begin);
    block.indices = indices + begin * task_.k;
    search_block(block);
  }
  if constexpr (kWide) {
    if (begin < count)
      wide().search(x + begin * task_.dim, count - begin, indices + begin * task_.k);
  }
}

template <typename T>
const NearestCodeWideSearch& NearestCodeSearchOf<T>::wide() const {
  std::call_once(packs_wide_, [&] {
    if constexpr (kWide) wide_ = std::make_unique<NearestCodeWideSearch>(task_, level_);
  });
  return *wide_;
}

/// Searches the rows that screening did not bring down to a few candidates.
template <typename T>
void NearestCodeSearchOf<T>::search_left(Block& block) const {
  const auto count = static_cast<int64_t>(block.left.size());
  if (count == 0) return;
  if constexpr (kWide) {
    AlignedBuffer<double> rows(count * task_.dim);
    std::vector<int64_t> found(static_cast<size_t>(count * task_.k));
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(block.x + block.left[i] * task_.dim, task_.dim, rows.data() + i * task_.dim);
    }
    wide().search(rows.data(), count, found.data());
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(found.data() + i * task_.k, task_.k, block.indices + block.left[i] * task_.k);
    }
  }
  block.left.clear();
  if (count > kTrial + block.count / 3) screening_pays_.store(false, std::memory_order_relaxed);
}

template <typename T>
void NearestCodeSearchOf<T>::search_block(Block& block) const {
  pack_block(block);
  if (static_cast<int64_t>(codes_.screened.size()) < task_.k) {
    for (int64_t row = 0; row < block.count; ++row) {
      if (!settle_special(row, block)) decide_among_all(row, block);
    }
  } else if (task_.k == 1 && scan_pays_.load(std::memory_order_relaxed)) {
    search_nearest(block);
  } else {
    search_several(block);
  }
  search_left(block);
  settle_repeated(block);
}

template <typename T>
void NearestCodeSearchOf<T>::pack_block(Block& block) const {
  const int64_t padded = round_up(block.count, scan_.tile_rows);
  for (int64_t r = 0; r < block.count; ++r) block.pointers[r] = block.x + r * task_.dim;
  for (int64_t r = 0; r < block.count; r += scan_.tile_rows) {
    const int64_t count = std::min<int64_t>(scan_.tile_rows, block.count - r);
    float* packed = block.packed.data() + r * depth_;
    if (task_.cosine) {
      reader().pack_unit_rows(&block.pointers[r], count, task_.dim, depth_, packed,
                              &block.norms[r]);
    } else {
      reader().pack_rows(&block.pointers[r], count, task_.dim, center_.data(), depth_, packed,
                         &block.norms[r]);
    }
  }
  for (int64_t r = 0; r < block.count; ++r) {
    const double square = block.norms[r];
    block.norms[r] = square < kLargeSquare ? std::sqrt(square) * (1 + 1e-6) : -1.0;
    if (block.norms[r] < 0) std::fill_n(block.packed.data() + r * depth_, depth_, 0.0f);
  }
  std::fill_n(block.packed.data() + block.count * depth_, (padded - block.count) * depth_, 0.0f);
}

template <typename T>
void NearestCodeSearchOf<T>::search_nearest(Block& block) const {
  block.coarsely = coarse_pays_.load(std::memory_order_relaxed);
  if (block.coarsely) {
    scan_coarsely(block);
  } else {
    scan_.scan(block.packed.data(), round_up(block.count, scan_.tile_rows), panels_.data(),
               half_norms_.data(), panel_count_, depth_, groups_, block.state.data(),
               block.results.data());
  }
  int64_t opened = 0;
  for (int64_t row = 0; row < block.count; ++row) {
    const size_t before = block.open.size();
    if (!settle_special(row, block)) settle_winner(row, block);
    if (block.open.size() > before) ++opened;
    if (static_cast<int64_t>(block.open.size()) == scan_.tile_rows) settle_open_rows(block);
  }
  settle_open_rows(block);
  if (opened > kTrial + block.count / 3) {
    (block.coarsely ? coarse_pays_ : scan_pays_).store(false, std::memory_order_relaxed);
  }
}

/// Scales each row to the same norm, so that its error is bounded by its own
/// norm and not by the largest.
template <typename T>
void NearestCodeSearchOf<T>::scan_coarsely(Block& block) const {
  const int64_t padded = round_up(block.count, scan_.tile_rows);
  coarse_units(block.norms.data(), block.count, padded, coarse_scale_, block.scales.data(),
               block.units.data());
  scan_.coarse_rows(block.packed.data(), padded, task_.dim, depth_, block.scales.data(),
                    block.coarse.data(), block.errors.data());
  scan_.coarse_scan(block.coarse.data(), block.units.data(), padded, coarse_.data(),
                    half_norms_.data(), panel_count_, scan_.coarse_words(task_.dim),
                    block.state.data(), block.results.data());
}

template <typename T>
double NearestCodeSearchOf<T>::reach(int64_t position, const Block& block, int64_t row) const {
  const auto& error = errors_[position];
  return kReach * (error.slope * block.norms[row] + error.intercept);
}

template <typename T>
bool NearestCodeSearchOf<T>::set_aside_may_win(double norm, double limit) const {
  if (codes_.set_aside.empty()) return false;
  if (kWide && task_.cosine) return true;  // underflow may have made a unit code longer than 1
  // <x, c> - ||c||^2 / 2 is at most ||x|| ||c|| - ||c||^2 / 2, which falls once ||c|| exceeds
  // ||x||. Of float64 it may be infinite: such a code cannot win, and NaN below says so.
  const double length = std::max(norm, set_aside_norm_);
  const double score = (task_.cosine ? 1.0 : norm * length - length * length / 2) - set_aside_bias_;
  return score + std::abs(score) * 1e-6 >= limit;
}

/// Settles a row that screening could not bound, or that is zero; returns false for all others.
template <typename T>
bool NearestCodeSearchOf<T>::settle_special(int64_t row, Block& block) const {
  if (block.norms[row] == 0 && task_.cosine && task_.bias == nullptr && task_.k == 1) {
    // Such as padding: its angle to every code is the same, and the first code wins the tie.
    const bool none = codes_.screened.empty() && codes_.set_aside.empty();
    if (none) return false;
    const int32_t last = INT32_MAX;
    block.indices[row] = std::min(codes_.screened.empty() ? last : codes_.screened.front(),
                                  codes_.set_aside.empty() ? last : codes_.set_aside.front());
    return true;
  }
  if (block.norms[row] >= 0) return false;
  const T* x = block.x + row * task_.dim;
  if (all_finite(x, task_.dim)) {
    decide_among_all(row, block);
  } else {
    std::fill_n(block.indices + row * task_.k, task_.k, -1);
  }
  return true;
}

template <typename T>
void NearestCodeSearchOf<T>::settle_winner(int64_t row, Block& block) const {
  const auto& result = block.results[row];
  const bool groups = groups_ && !block.coarsely;
  const int64_t members = groups ? scan_.vectors : 1;
  double widest = 0;
  for (int64_t c = 0; c < members; ++c) {
    widest = std::max(widest, reach(result.position + c * scan_.lanes, block, row));
  }
  if (block.coarsely) {
    // A row that was not scaled was scanned as zeros, so its error is the whole product.
    const double slope =
        block.scales[row] == 0.0F
            ? coarse_norm_
            : coarse_slope(coarse_norm_, coarse_rounding_, coarse_rounding(block.errors[row]));
    widest += kReach * slope * block.norms[row];
  }
  const double limit = result.best - widest;
  if (set_aside_may_win(block.norms[row], limit)) {
    decide_among_all(row, block);
  } else if (result.runner_up >= limit) {
    if (repeats_opened(row, block)) return;
    if (!groups && settle_rivals(row, limit, block)) return;
    open(row, block);
    std::memcpy(block.open_rows.data() + static_cast<int64_t>(block.open.size()) * depth_,
                block.packed.data() + row * depth_, sizeof(float) * static_cast<size_t>(depth_));
    block.open.push_back(row);
    block.limits.push_back(limit);
  } else if (!groups) {
    block.indices[row] = codes_.screened[result.position];
  } else {
    block.candidates.clear();
    for (int64_t c = 0; c < members; ++c) {
      const size_t position = result.position + c * scan_.lanes;
      if (position < codes_.screened.size()) block.candidates.push_back(codes_.screened[position]);
    }
    block.decision.decide(block.x + row * task_.dim, block.candidates, codes_.excluded,
                          block.indices + row * task_.k);
  }
}

/// Settles a close call for tokens that are all the same, such as padding or silence, once for all of
/// them; returns false for a row of another token.
template <typename T>
bool NearestCodeSearchOf<T>::repeats_opened(int64_t row, Block& block) const {
  const size_t bytes = sizeof(T) * static_cast<size_t>(task_.dim);
  if (block.opened == nullptr || task_.k > 1 ||
      std::memcmp(block.opened, block.x + row * task_.dim, bytes) != 0) {
    return false;
  }
  block.repeated.emplace_back(row, block.opened_index);
  return true;
}

template <typename T>
void NearestCodeSearchOf<T>::open(int64_t row, Block& block) const {
  block.opened = block.x + row * task_.dim;
  block.opened_index = block.indices + row;
}

template <typename T>
void NearestCodeSearchOf<T>::settle_repeated(Block& block) {
  for (const auto& [row, index] : block.repeated) block.indices[row] = *index;
  block.repeated.clear();
}

/// Settles a close call if the scan has kept the positions of all rivals; otherwise returns false.
template <typename T>
bool NearestCodeSearchOf<T>::settle_rivals(int64_t row, double limit, Block& block) const {
  const int64_t found =
      scan_.rivals(block.state.data(), row, round_down(limit), block.places.data());
  if (found < 0) return false;
  block.candidates.clear();
  for (int64_t i = 0; i < found; ++i) block.candidates.push_back(codes_.screened[block.places[i]]);
  std::sort(block.candidates.begin(), block.candidates.end());
  block.decision.decide(block.x + row * task_.dim, block.candidates, codes_.excluded,
                        block.indices + row * task_.k);
  return true;
}

template <typename T>
void NearestCodeSearchOf<T>::settle_open_rows(Block& block) const {
  if (block.open.empty()) return;
  const auto count = static_cast<int64_t>(block.open.size());
  std::fill_n(block.open_rows.data() + count * depth_, (scan_.tile_rows - count) * depth_, 0.0f);
  scan_.score(block.open_rows.data(), panels_.data(), half_norms_.data(), panel_count_, depth_,
              block.scores.data());
  for (int64_t i = 0; i < count; ++i) {
    const float* scores = block.scores.data() + i * panel_count_ * scan_.panel;
    const int64_t row = block.open[i];
    // These float32 scores give a tighter limit than the coarse scan.
    const double limit = block.coarsely ? limit_of_best(scores, row, block) : block.limits[i];
    decide_among(scores, limit, row, block);
  }
  block.open.clear();
  block.limits.clear();
}

template <typename T>
void NearestCodeSearchOf<T>::search_several(Block& block) const {
  for (int64_t first = 0; first < block.count; first += scan_.tile_rows) {
    scan_.score(block.packed.data() + first * depth_, panels_.data(), half_norms_.data(),
                panel_count_, depth_, block.scores.data());
    for (int64_t row = first; row < std::min<int64_t>(first + scan_.tile_rows, block.count);
         ++row) {
      if (settle_special(row, block) || repeats_opened(row, block)) continue;
      const float* scores = block.scores.data() + (row - first) * panel_count_ * scan_.panel;
      const double limit = limit_of_best(scores, row, block);
      if (set_aside_may_win(block.norms[row], limit)) {
        decide_among_all(row, block);
      } else {
        decide_among(scores, limit, row, block);
      }
      if (block.candidates.size() > 1) open(row, block);
    }
  }
}

/// Limit that the score of one of the k best codes must reach: the k-th largest of scores minus
/// their errors, which k codes are certain to reach.
template <typename T>
double NearestCodeSearchOf<T>::limit_of_best(const float* scores, int64_t row, Block& block) const {
  const auto count = static_cast<int64_t>(codes_.screened.size());
  if (!own_errors_) {
    return block.kth_largest.find(scan_, scores, count, task_.k) - reach(0, block, row);
  }
  block.floors.resize(static_cast<size_t>(count));
  for (int64_t p = 0; p < count; ++p)
    block.floors[p] = round_down(scores[p] - reach(p, block, row));
  return block.kth_largest.find(scan_, block.floors.data(), count, task_.k);
}

template <typename T>
void NearestCodeSearchOf<T>::decide_among(const float* scores, double limit, int64_t row,
                                          Block& block) const {
  const auto count = static_cast<int64_t>(codes_.screened.size());
  const int64_t found = scan_.at_least(scores, count, round_down(limit), block.places.data());
  block.candidates.clear();
  for (int64_t i = 0; i < found; ++i) block.candidates.push_back(codes_.screened[block.places[i]]);
  if (kWide && found > task_.k && found * kSharePairs > count) {
    block.left.push_back(row);
    return;
  }
  block.decision.decide(block.x + row * task_.dim, block.candidates, codes_.excluded,
                        block.indices + row * task_.k);
}

template <typename T>
void NearestCodeSearchOf<T>::decide_among_all(int64_t row, Block& block) const {
  if (kWide) {
    block.left.push_back(row);
    return;
  }
  auto& candidates = block.candidates;
  candidates.resize(codes_.screened.size() + codes_.set_aside.size());
  std::merge(codes_.screened.begin(), codes_.screened.end(), codes_.set_aside.begin(),
             codes_.set_aside.end(), candidates.begin());
  block.decision.decide(block.x + row * task_.dim, block.candidates, codes_.excluded,
                        block.indices + row * task_.k);
}

template void NearestCodeSearchOf<float>::search(const float*, int64_t, int64_t*) const;
template void NearestCodeSearchOf<double>::search(const double*, int64_t, int64_t*) const;

}  // namespace torchvq::kernels
