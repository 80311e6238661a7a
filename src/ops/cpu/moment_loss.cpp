// The operator handles a few dozen numbers, so each call of the tensor library would dominate
// its cost; there are none.
#include "ops/moment_loss.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

/// Rows of moments, each of a part of the tokens, in float64.
struct Rows {
  explicit Rows(const at::Tensor& moments)
      : numbers(moments.to(at::kDouble).contiguous()),
        from(numbers.const_data_ptr<double>()),
        rows(numbers.size(0)),
        dim((numbers.size(1) - 1) / 4) {
    for (int64_t w = 0; w < rows; ++w) total += count(w);
  }

  double count(int64_t w) const { return from[w * numbers.size(1)]; }
  double part(int64_t k, int64_t w, int64_t j) const {
    return from[w * numbers.size(1) + 1 + k * dim + j];
  }
  /// Whether there are enough tokens for statistic k.
  bool has(int64_t k) const { return total >= static_cast<double>(detail::least_tokens(k)); }

  at::Tensor numbers;
  const double* from;
  int64_t rows, dim;
  double total = 0;
};

/// The moments of all rows merged about their common mean (Pebay 2008,
/// SAND2008-6212, equations 3.1).
struct Feature {
  Feature(const Rows& all, int64_t j) : number(std::max(all.total, 1.0)) {
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
    spread = variance + detail::kLeastVariance;
    root = std::sqrt(spread);
    statistics = {mean, variance, third / number / (spread * root),
                  fourth / number / (spread * spread) - 3};
  }

  double number, mean = 0, second = 0, third = 0, fourth = 0, spread, root;
  std::array<double, 4> statistics;
};

detail::MomentLossTensors moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights) {
  detail::check_moment_loss(moments, targets, weights);
  const Rows all(moments);
  auto loss = at::zeros({}, all.numbers.options());
  std::array<at::Tensor, 4> statistics;
  for (auto& tensor : statistics) tensor = at::empty({all.dim}, all.numbers.options());
  std::array<double, 4> terms{};
  for (int64_t j = 0; j < all.dim; ++j) {
    const Feature feature(all, j);
    for (size_t k = 0; k < 4; ++k) {
      const double value = feature.statistics[k], miss = value - targets[k];
      statistics[k].mutable_data_ptr<double>()[j] = value;
      terms[k] += miss * miss;
    }
  }
  auto& sum = *loss.mutable_data_ptr<double>();
  for (size_t k = 0; k < 4; ++k) {
    if (weights[k] != 0 && all.has(static_cast<int64_t>(k))) {
      sum += terms[k] / static_cast<double>(all.dim) * weights[k];
    }
  }
  const auto give = [&](const at::Tensor& of) { return of.to(moments.scalar_type()); };
  return {give(loss), give(statistics[0]), give(statistics[1]), give(statistics[2]),
          give(statistics[3])};
}

/// Writes the gradients of feature j's moments in all rows; `slopes` are those of its statistics.
void fill_slopes(const Rows& all, int64_t j, const Feature& feature,
                 const std::array<double, 4>& slopes, double* to) {
  const double of_variance = slopes[1] - (slopes[2] * 1.5 * feature.statistics[2] +
                                          slopes[3] * 2 * (feature.statistics[3] + 3)) /
                                             feature.spread;
  const double second = of_variance / std::max(all.total - 1, 1.0);
  const double third = slopes[2] / feature.number / (feature.spread * feature.root);
  const double fourth = slopes[3] / feature.number / (feature.spread * feature.spread);
  // Moving the common mean shifts all rows.
  const double mean = slopes[0] - 3 * feature.second * third - 4 * feature.third * fourth;
  for (int64_t w = 0; w < all.rows; ++w) {
    const double count = all.count(w), shift = all.part(0, w, j) - feature.mean;
    const double square = shift * shift, own2 = all.part(1, w, j), own3 = all.part(2, w, j);
    double* row = to + w * (1 + 4 * all.dim) + 1 + j;
    row[0] = count * mean / feature.number + 2 * count * shift * second +
             3 * (own2 + count * square) * third +
             4 * (own3 + 3 * shift * own2 + count * square * shift) * fourth;
    row[all.dim] = second + 3 * shift * third + 6 * square * fourth;
    row[2 * all.dim] = third + 4 * shift * fourth;
    row[3 * all.dim] = fourth;
  }
}

at::Tensor moment_loss_backward(const at::Tensor& grad, const at::Tensor& moments,
                                at::ArrayRef<double> targets, at::ArrayRef<double> weights) {
  detail::check_moment_loss_backward(grad, moments, targets, weights);
  const Rows all(moments);
  const double own = grad.item<double>() * 2 / static_cast<double>(all.dim);
  auto result = at::zeros(all.numbers.sizes(), all.numbers.options());
  for (int64_t j = 0; j < all.dim; ++j) {
    const Feature feature(all, j);
    std::array<double, 4> slopes{};
    for (size_t k = 0; k < 4; ++k) {
      if (weights[k] != 0 && all.has(static_cast<int64_t>(k))) {
        slopes[k] = own * weights[k] * (feature.statistics[k] - targets[k]);
      }
    }
    fill_slopes(all, j, feature, slopes, result.mutable_data_ptr<double>());
  }
  return result.to(moments.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("moment_loss", moment_loss);
  m.impl("moment_loss_backward", moment_loss_backward);
}

}  // namespace torchvq
