// Moments of tokens and the losses of moments on raw pointers, for token_moments, moment_loss and
// token_moment_loss. They handle a few dozen numbers, so each call of the tensor library would
// dominate their cost; there are none.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/ArrayRef.h>

#include "ops/moment_loss.h"

namespace torchvq::detail {

// Blocks, and so the order of additions, do not depend on the number of threads.
inline constexpr int64_t kMomentTokensPerBlock = 1024;

/// Numbers of moments of `dim` features: a count, then mean and three sums of powers.
constexpr int64_t count_moments(int64_t dim) { return 1 + 4 * dim; }

/// Contiguous tokens (N, D), and which of them are real; all of them if `mask` is null.
template <typename T>
struct MomentTokens {
  const T* x;
  const bool* mask;
  int64_t count, dim;
};

/// Sums `width` numbers over the tokens; body(token, sums) adds one token.
template <typename T, typename Body>
std::vector<double> sum_over_tokens(const MomentTokens<T>& tokens, int64_t width,
                                    const Body& body) {
  const int64_t blocks = (tokens.count + kMomentTokensPerBlock - 1) / kMomentTokensPerBlock;
  std::vector<double> parts(static_cast<size_t>(blocks * width));
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      for (int64_t i = b * kMomentTokensPerBlock;
           i < std::min(tokens.count, (b + 1) * kMomentTokensPerBlock); ++i) {
        if (tokens.mask == nullptr || tokens.mask[i]) {
          body(tokens.x + i * tokens.dim, parts.data() + b * width);
        }
      }
    }
  });
  std::vector<double> total(static_cast<size_t>(width));
  for (size_t at = 0; at < parts.size(); ++at) total[at % total.size()] += parts[at];
  return total;
}

/// Writes the count_moments(dim) moments of tokens.
template <typename T>
void fill_moments(const MomentTokens<T>& tokens, double* to) {
  const int64_t dim = tokens.dim;
  to[0] = static_cast<double>(tokens.mask == nullptr
                                  ? tokens.count
                                  : std::count(tokens.mask, tokens.mask + tokens.count, true));
  double* mean = to + 1;
  const auto sums = sum_over_tokens(tokens, dim, [&](const T* x, double* sum) {
    for (int64_t j = 0; j < dim; ++j) sum[j] += static_cast<double>(x[j]);
  });
  for (int64_t j = 0; j < dim; ++j) mean[j] = sums[static_cast<size_t>(j)] / std::max(to[0], 1.0);
  const auto powers = sum_over_tokens(tokens, 3 * dim, [&](const T* x, double* sum) {
    for (int64_t j = 0; j < dim; ++j) {
      const double rest = static_cast<double>(x[j]) - mean[j], square = rest * rest;
      sum[j] += square;
      sum[dim + j] += square * rest;
      sum[2 * dim + j] += square * square;
    }
  });
  std::copy(powers.begin(), powers.end(), mean + dim);
}

/// The slope at x is a polynomial in x - mean, with four coefficients per feature.
class MomentSlopes {
 public:
  MomentSlopes(const double* grad, const double* moments, int64_t dim)
      : mean_(moments + 1), coefficients_(static_cast<size_t>(4 * dim)) {
    const double count = std::max(moments[0], 1.0);
    for (int64_t j = 0; j < dim; ++j) {
      const auto part = [&](const double* of, int64_t k) { return of[1 + k * dim + j]; };
      double* own = coefficients_.data() + 4 * j;
      own[0] = (part(grad, 0) - 3 * part(grad, 2) * part(moments, 1) -
                4 * part(grad, 3) * part(moments, 2)) /
               count;
      for (int64_t k = 1; k < 4; ++k) own[k] = static_cast<double>(k + 1) * part(grad, k);
    }
  }

  double at(int64_t j, double x) const {
    const double* own = coefficients_.data() + 4 * j;
    const double rest = x - mean_[j];
    return own[0] + rest * (own[1] + rest * (own[2] + rest * own[3]));
  }

 private:
  const double* mean_;
  std::vector<double> coefficients_;
};

/// Writes the gradient of every token; that of padding is 0.
template <typename T>
void fill_token_slopes(const MomentTokens<T>& tokens, const MomentSlopes& slopes, T* to) {
  const int64_t dim = tokens.dim;
  at::parallel_for(0, tokens.count, kMomentTokensPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool real = tokens.mask == nullptr || tokens.mask[i];
      for (int64_t j = 0; j < dim; ++j) {
        const int64_t at = i * dim + j;
        to[at] = real ? static_cast<T>(slopes.at(j, static_cast<double>(tokens.x[at]))) : T(0);
      }
    }
  });
}

/// Rows of moments, each of a part of the tokens.
struct MomentRows {
  MomentRows(const double* from_, int64_t rows_, int64_t dim_)
      : from(from_), rows(rows_), dim(dim_) {
    for (int64_t w = 0; w < rows; ++w) total += count(w);
  }

  double count(int64_t w) const { return from[w * count_moments(dim)]; }
  double part(int64_t k, int64_t w, int64_t j) const {
    return from[w * count_moments(dim) + 1 + k * dim + j];
  }
  /// Whether there are enough tokens for statistic k.
  bool has(int64_t k) const { return total >= static_cast<double>(least_tokens(k)); }

  const double* from;
  int64_t rows, dim;
  double total = 0;
};

/// The moments of all rows merged about their common mean (Pebay 2008,
/// SAND2008-6212, equations 3.1).
struct MergedFeature {
  MergedFeature(const MomentRows& all, int64_t j) : number(std::max(all.total, 1.0)) {
    for (int64_t w = 0; w < all.rows; ++w) mean += all.count(w) * all.part(0, w, j);
    mean /= number;
    for (int64_t w = 0; w < all.rows; ++w) {
      const double count = all.count(w), shift = all.part(0, w, j) - mean, square = shift * shift;
      const double own2 = all.part(1, w, j), own3 = all.part(2, w, j);
      second += own2 + count * square;
      third += own3 + shift * 3 * own2 + count * square * shift;
      fourth += all.part(3, w, j) + shift * 4 * own3 + square * 6 * own2 + count * square * square;
    }
    const double variance = second / std::max(all.total - 1, 1.0);
    constexpr auto kBounds = least_variance(at::kDouble);
    const double least = std::max(mean * mean * kBounds.of_squared_mean, kBounds.absolute);
    varies = variance > least;
    spread = varies ? variance : least;
    root = std::sqrt(spread);
    statistics = {mean, variance, third / number / (spread * root),
                  fourth / number / (spread * spread) - 3};
  }

  double number, mean = 0, second = 0, third = 0, fourth = 0, spread, root;
  bool varies = false;
  std::array<double, 4> statistics;
};

/// The loss; writes the four statistics of all features, those of statistic k from k * dim on.
inline double loss_of_moments(const MomentRows& all, at::ArrayRef<double> targets,
                              at::ArrayRef<double> weights, double* statistics) {
  std::array<double, 4> terms{};
  for (int64_t j = 0; j < all.dim; ++j) {
    const MergedFeature feature(all, j);
    for (size_t k = 0; k < 4; ++k) {
      const double value = feature.statistics[k], miss = value - targets[k];
      statistics[static_cast<int64_t>(k) * all.dim + j] = value;
      terms[k] += miss * miss;
    }
  }
  double loss = 0;
  for (size_t k = 0; k < 4; ++k) {
    if (weights[k] != 0 && all.has(static_cast<int64_t>(k))) {
      loss += terms[k] / static_cast<double>(all.dim) * weights[k];
    }
  }
  return loss;
}

/// Writes the gradients of feature j's moments in all rows; `slopes` are those of its statistics.
inline void fill_feature_slopes(const MomentRows& all, int64_t j, const MergedFeature& feature,
                                const std::array<double, 4>& slopes, double* to) {
  const double of_spread =
      (slopes[2] * 1.5 * feature.statistics[2] + slopes[3] * 2 * (feature.statistics[3] + 3)) /
      feature.spread;
  const double of_variance = slopes[1] - (feature.varies ? of_spread : 0);
  const double second = of_variance / std::max(all.total - 1, 1.0);
  const double third = slopes[2] / feature.number / (feature.spread * feature.root);
  const double fourth = slopes[3] / feature.number / (feature.spread * feature.spread);
  // Moving the common mean shifts all rows.
  const double mean = slopes[0] - 3 * feature.second * third - 4 * feature.third * fourth;
  for (int64_t w = 0; w < all.rows; ++w) {
    const double count = all.count(w), shift = all.part(0, w, j) - feature.mean;
    const double square = shift * shift, own2 = all.part(1, w, j), own3 = all.part(2, w, j);
    double* row = to + w * count_moments(all.dim) + 1 + j;
    row[0] = count * mean / feature.number + 2 * count * shift * second +
             3 * (own2 + count * square) * third +
             4 * (own3 + 3 * shift * own2 + count * square * shift) * fourth;
    row[all.dim] = second + 3 * shift * third + 6 * square * fourth;
    row[2 * all.dim] = third + 4 * shift * fourth;
    row[3 * all.dim] = fourth;
  }
}

/// Writes the gradients of all moments but the counts, whose places must be zeros.
inline void fill_moment_slopes(const MomentRows& all, double grad, at::ArrayRef<double> targets,
                               at::ArrayRef<double> weights, double* to) {
  const double own = grad * 2 / static_cast<double>(all.dim);
  for (int64_t j = 0; j < all.dim; ++j) {
    const MergedFeature feature(all, j);
    std::array<double, 4> slopes{};
    for (size_t k = 0; k < 4; ++k) {
      if (weights[k] != 0 && all.has(static_cast<int64_t>(k))) {
        slopes[k] = own * weights[k] * (feature.statistics[k] - targets[k]);
      }
    }
    fill_feature_slopes(all, j, feature, slopes, to);
  }
}

}  // namespace torchvq::detail
