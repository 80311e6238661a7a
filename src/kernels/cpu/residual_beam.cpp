#include "kernels/cpu/residual_beam.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/nearest_code_decide.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kFewPaths = 16;   // up to this, repeated minima are faster than a partial sort
constexpr int64_t kSegment = 1024;  // values between two updates of the limit

/// Exact scores of up to 4 codes, by the contract: float64, over d in index
/// order, without contraction.
void remainders(const float* residual, const float* const* codes, int64_t dim, int64_t count,
                double* scores) {
  double sum[4] = {};
  const float* const pick[4] = {codes[0], codes[count > 1 ? 1 : 0], codes[count > 2 ? 2 : 0],
                                codes[count > 3 ? 3 : 0]};
  for (int64_t d = 0; d < dim; ++d) {
    const double r = residual[d];
    for (int i = 0; i < 4; ++i) {
      const double difference = r - static_cast<double>(pick[i][d]);
      sum[i] += difference * difference;
    }
  }
  for (int64_t i = 0; i < count; ++i) scores[i] = sum[i];
}

}  // namespace

ResidualBeam::ResidualBeam(const BeamTask& task, CpuLevel level, int64_t max_rows)
    : task_(task),
      scan_(residual_beam_scan(level)),
      levels_(static_cast<int64_t>(task.levels.size())),
      places_(kSegment) {
  const int64_t slots = max_rows * task.beam;
  int64_t stride = 0;
  for (const auto& each : task.levels) stride = std::max(stride, each.panels->stride());
  base_ = AlignedBuffer<float>(((task.products ? max_rows : slots) + kBeamTile) * stride);
  if (task.products) x_ = AlignedBuffer<float>(max_rows * task.dim);
  for (int side = 0; side < 2; ++side) {
    residuals_[side] = AlignedBuffer<float>(slots * task.dim);
    paths_[side].resize(static_cast<size_t>(slots));
    histories_[side].resize(static_cast<size_t>(slots * levels_));
  }
}

void ResidualBeam::begin(const float* x, int64_t rows) {
  rows_ = rows, width_ = 1, done_ = 0;
  finite_.resize(static_cast<size_t>(rows));
  std::copy_n(x, rows * task_.dim, residuals_[side_].data());
  if (task_.products) std::copy_n(x, rows * task_.dim, x_.data());
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = x + row * task_.dim;
    double length = squared_norm(from, task_.dim);
    const bool finite = std::isfinite(length);
    finite_[static_cast<size_t>(row)] = finite;
    if (!finite) {
      std::fill_n(residuals_[side_].data() + row * task_.dim, task_.dim, 0.0F);
      if (task_.products) std::fill_n(x_.data() + row * task_.dim, task_.dim, 0.0F);
      length = 0;
    }
    paths_[side_][static_cast<size_t>(row * task_.beam)] = {task_.weighted ? 0 : length, length,
                                                            std::sqrt(length)};
  }
}

void ResidualBeam::step() {
  if (!task_.products || done_ == 0) measure_rows();
  level().panels->products({task_.products ? x_.data() : residuals(), norms_.data(),
                            static_cast<int64_t>(norms_.size())},
                           base_.data());
  const int64_t all = width_ * level().size;
  const int64_t count = last() ? 1 : std::min(task_.beam, all);
  next_width_ = count;
  const int64_t stride = per_row() * level().panels->stride();
  for (int64_t row = 0; row < rows_; ++row) {
    if (finite_[static_cast<size_t>(row)]) {
      extend_row(row, base_.data() + row * stride, count);
    } else {
      std::fill_n(residuals_[side_ ^ 1].data() + row * count * task_.dim, count * task_.dim, 0.0F);
    }
  }
  width_ = next_width_;
  side_ ^= 1;
  ++done_;
}

/// Keeps the norms of the rows that products are made of.
void ResidualBeam::measure_rows() {
  norms_.clear();
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t h = 0; h < width_; ++h)
      norms_.push_back(std::sqrt(paths(row)[h].length) * kNormSlack);
  }
}

void ResidualBeam::finish(int64_t* indices) const {
  for (int64_t row = 0; row < rows_; ++row) {
    const int32_t* const history = histories_[side_].data() + row * task_.beam * levels_;
    for (int64_t n = 0; n < levels_; ++n) {
      indices[row * levels_ + n] = finite_[static_cast<size_t>(row)] ? history[n] : 0;
    }
  }
}

void ResidualBeam::extend_row(int64_t row, const float* base, int64_t count) {
  extensions_.clear();
  if (screens(row, count)) {
    score_paths(row, base);
    collect(count);
    choose(row, count);
  } else {
    collect_exactly(row);
    std::nth_element(extensions_.begin(), extensions_.begin() + (count - 1), extensions_.end());
    extensions_.resize(static_cast<size_t>(count));
  }
  std::sort(extensions_.begin(), extensions_.end(),
            [](const Extension& a, const Extension& b) { return a.place < b.place; });
  continue_paths(row, count);
}

/// Whether float32 scores can separate codes; if so, sets the bound on the error of the values.
bool ResidualBeam::screens(int64_t row, int64_t count) {
  double reach = 0, least = HUGE_VAL, most = 0;
  for (int64_t h = 0; h < width_; ++h) {
    const Path& path = paths(row)[h];
    const double whole = offset(path);
    if (!std::isfinite(whole)) return false;
    reach = std::max(reach, task_.products ? path.reach : std::sqrt(path.length));
    least = std::min(least, whole);
    most = std::max(most, whole);
  }
  const double whole = reach + level().radius, weight = level().weight;
  const double largest = std::max({whole * whole, weight * whole * whole, most});
  if (!(largest < kLargeSquare) || level().finite * width_ < count) return false;
  // Rounding of the contract's sum, and of lengths and scores as added up here.
  const double wide = chain_error(roundings(), kDoubleUnit) * 8 * largest;
  shift_ = least / 2;
  margin_ = kReach * (weight * value_error(row, reach) + 4 * kFloatUnit * (most - least) + wide +
                      kFloatTiny);
  return true;
}

/// Bounds the error of the values of a row before they are weighted. reach: of its paths.
double ResidualBeam::value_error(int64_t row, double reach) const {
  // Rounding of the products of row, earlier codes and code, of their sum, and of the residual.
  const auto& own = level();
  const double whole = reach + own.radius, count = static_cast<double>(roundings());
  const double floats =
      chain_error(roundings(), kFloatUnit) * whole * own.radius + kFloatTiny * count * (1 + whole);
  // Rounding to integers of row and codes, and of the products with earlier codes.
  double rounding = 0;
  for (int64_t r = row * per_row(); r < (row + 1) * per_row(); ++r) {
    rounding = std::max(rounding, own.panels->rounding(norms_[static_cast<size_t>(r)]));
  }
  const double earlier = task_.products ? static_cast<double>(done_) : 0;
  return floats + rounding * reach + earlier * (kSmallestCoarse * own.radius + 0.51 * own.unit);
}

/// Computes the values of all extensions of a row's paths, and the smallest per group.
void ResidualBeam::score_paths(int64_t row, const float* base) {
  const int64_t size = level().size, earlier = task_.products ? done_ : 0;
  const int32_t* const histories = histories_[side_].data() + row * task_.beam * levels_;
  smallest_.assign(kBeamGroups, HUGE_VALF);
  plus_.resize(static_cast<size_t>(earlier));
  values_.resize(static_cast<size_t>(width_ * size));
  for (int64_t h = 0; h < width_; ++h) {
    for (int64_t m = 0; m < earlier; ++m) {
      plus_[static_cast<size_t>(m)] = level().products[static_cast<size_t>(m)] +
                                      histories[h * levels_ + m] * level().panels->stride();
    }
    scan_.score(task_.products ? base : base + h * level().panels->stride(), plus_.data(), earlier,
                size, level().unit, static_cast<float>(level().weight),
                static_cast<float>(offset(paths(row)[h]) / 2 - shift_), values_.data() + h * size,
                smallest_.data());
  }
}

/// Collects the extensions that may be among the best.
void ResidualBeam::collect(int64_t count) {
  // Groups are disjoint, so the count-th smallest of their minima is an upper bound of
  // the count-th best value.
  limit_ = 0x1p126;  // excluded codes, whose values are infinite, stay out
  if (count <= kFewPaths) {
    limit_ = std::min(limit_, scan_.bound(smallest_.data(), count) + margin_);
  } else if (count <= kBeamGroups) {
    std::nth_element(smallest_.begin(), smallest_.begin() + (count - 1), smallest_.end());
    limit_ = std::min(limit_, smallest_[static_cast<size_t>(count - 1)] + margin_);
  }
  room_ = static_cast<size_t>(2 * count) + 64;
  const auto all = static_cast<int64_t>(values_.size());
  for (int64_t begin = 0; begin < all; begin += kSegment) {
    const float* const values = values_.data() + begin;
    const int64_t found = scan_.at_most(values, std::min(kSegment, all - begin),
                                        -round_down(-limit_), places_.data());
    for (int64_t i = 0; i < found; ++i) {
      const int32_t place = places_[static_cast<size_t>(i)];
      extensions_.push_back({values[place], begin + place});
    }
    if (extensions_.size() >= room_) reduce(count);
  }
  reduce(count);
}

/// Drops extensions that are certain not to be among the best.
void ResidualBeam::reduce(int64_t count) {
  if (static_cast<int64_t>(extensions_.size()) <= count) return;
  const auto nth = extensions_.begin() + (count - 1);
  std::nth_element(extensions_.begin(), nth, extensions_.end());
  limit_ = nth->value + margin_;
  const auto end = std::partition(nth + 1, extensions_.end(), [&](const Extension& extension) {
    return extension.value <= limit_;
  });
  extensions_.erase(end, extensions_.end());
  room_ = std::max(room_, 2 * extensions_.size());
}

void ResidualBeam::collect_exactly(int64_t row) {
  for (int64_t place = 0; place < width_ * level().size; ++place) {
    extensions_.push_back({0, place});
  }
  score_exactly(row, extensions_.data(), static_cast<int64_t>(extensions_.size()));
}

/// Chooses the `count` best of the collected extensions: those that are certain, and of the others
/// the best by exact scores.
void ResidualBeam::choose(int64_t row, int64_t count) {
  const auto all = static_cast<int64_t>(extensions_.size());
  if (all == count) return;
  const double least = limit_ - 2 * margin_;
  const auto open =
      std::partition(extensions_.begin(), extensions_.end(),
                     [&](const Extension& extension) { return extension.value < least; });
  score_exactly(row, &*open, extensions_.end() - open);
  std::nth_element(open, extensions_.begin() + (count - 1), extensions_.end());
  extensions_.resize(static_cast<size_t>(count));
}

void ResidualBeam::score_exactly(int64_t row, Extension* extensions, int64_t count) const {
  const int64_t size = level().size, dim = task_.dim;
  for (int64_t i = 0; i < count;) {
    // Up to four extensions of one path at a time.
    const int64_t path = extensions[i].place / size;
    const float* codes[4];
    int64_t together = 0;
    for (; together < 4 && i + together < count; ++together) {
      const int64_t place = extensions[i + together].place;
      if (place / size != path) break;
      codes[together] = level().codes + place % size * dim;
    }
    double scores[4];
    const float* const residual = residuals() + (row * width_ + path) * dim;
    remainders(residual, codes, dim, together, scores);
    for (int64_t j = 0; j < together; ++j, ++i) {
      double value = scores[j];
      if (task_.weighted) value = paths(row)[path].score + value * level().weight;
      const bool absent = level().excluded[extensions[i].place % size];
      extensions[i].value = absent || !std::isfinite(value) ? HUGE_VAL : value;
    }
  }
}

/// Writes the chosen extensions of a row as its next paths.
void ResidualBeam::continue_paths(int64_t row, int64_t count) {
  const int64_t size = level().size, dim = task_.dim;
  if (task_.weighted && !last()) score_exactly(row, extensions_.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t path = extensions_[static_cast<size_t>(i)].place / size;
    const int64_t code = extensions_[static_cast<size_t>(i)].place % size;
    const int32_t* const from = histories_[side_].data() + (row * task_.beam + path) * levels_;
    int32_t* const to = histories_[side_ ^ 1].data() + (row * task_.beam + i) * levels_;
    std::copy_n(from, done_, to);
    to[done_] = static_cast<int32_t>(code);
    if (last()) continue;
    const double length =
        scan_.subtract(residuals() + (row * width_ + path) * dim, level().codes + code * dim, dim,
                       residuals_[side_ ^ 1].data() + (row * next_width_ + i) * dim);
    const double score = task_.weighted ? extensions_[static_cast<size_t>(i)].value : length;
    paths_[side_ ^ 1][static_cast<size_t>(row * task_.beam + i)] = {
        score, length, paths(row)[path].reach + level().norms[code]};
  }
}

}  // namespace torchvq::kernels
