// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/moment_loss.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace torchvq {
namespace {

/// The moments of all rows merged about their common mean (Pebay 2008,
/// SAND2008-6212, equations 3.1).
struct Merged {
  explicit Merged(const at::Tensor& moments)
      : dim((moments.size(1) - 1) / 4), counts(moments.narrow(1, 0, 1)), count(counts.sum()) {
    const auto part = [&](int64_t k) { return moments.narrow(1, 1 + k * dim, dim); };
    mean = (counts * part(0)).sum(0) / count.clamp_min(1);
    own_second = part(1), own_third = part(2);
    shift = part(0) - mean;
    const auto square = shift.square();
    second = (own_second + counts * square).sum(0);
    third = (own_third + shift * 3 * own_second + counts * square * shift).sum(0);
    fourth = (part(3) + shift * 4 * own_third + square * 6 * own_second + counts * square.square())
                 .sum(0);
    variance = second / (count - 1).clamp_min(1);
    const auto bounds = detail::least_variance(moments.scalar_type());
    const auto least = mean.square().mul(bounds.of_squared_mean).clamp_min(bounds.absolute);
    varies = variance.gt(least);
    spread = at::where(varies, variance, least);
    skewness = third / count.clamp_min(1) / spread.pow(1.5);
    kurtosis = fourth / count.clamp_min(1) / spread.square() - 3;
  }

  int64_t dim;
  at::Tensor counts, count, mean, own_second, own_third, shift, second, third, fourth;
  at::Tensor variance, varies, spread, skewness, kurtosis;
};

detail::MomentLossTensors moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights) {
  detail::check_moment_loss(moments, targets, weights);
  const Merged all(moments);
  const std::vector<at::Tensor> statistics{all.mean, all.variance, all.skewness, all.kurtosis};
  auto loss = at::zeros({}, moments.options());
  for (size_t k = 0; k < statistics.size(); ++k) {
    if (weights[k] == 0) continue;
    const auto term = (statistics[k] - targets[k]).square().mean() * weights[k];
    loss = loss + at::where(all.count.ge(detail::least_tokens(static_cast<int64_t>(k))), term, 0);
  }
  return {loss, all.mean, all.variance, all.skewness, all.kurtosis};
}

at::Tensor moment_loss_backward(const at::Tensor& grad_, const at::Tensor& moments,
                                at::ArrayRef<double> targets, at::ArrayRef<double> weights) {
  detail::check_moment_loss_backward(grad_, moments, targets, weights);
  const Merged all(moments);
  const auto grad = grad_.to(moments.scalar_type());
  const auto slope = [&](size_t k, const at::Tensor& statistic) {
    if (weights[k] == 0) return at::zeros_like(statistic);
    const auto own =
        grad * (2 * weights[k] / static_cast<double>(all.dim)) * (statistic - targets[k]);
    return at::where(all.count.ge(detail::least_tokens(static_cast<int64_t>(k))), own, 0);
  };
  const auto of_skewness = slope(2, all.skewness), of_kurtosis = slope(3, all.kurtosis);
  const auto number = all.count.clamp_min(1);
  const auto of_spread =
      (of_skewness * 1.5 * all.skewness + of_kurtosis * 2 * (all.kurtosis + 3)) / all.spread;
  const auto of_variance = slope(1, all.variance) - at::where(all.varies, of_spread, 0);
  const auto second = of_variance / (all.count - 1).clamp_min(1);
  const auto third = of_skewness / number / all.spread.pow(1.5);
  const auto fourth = of_kurtosis / number / all.spread.square();
  // Moving the common mean shifts all rows.
  const auto mean = slope(0, all.mean) - 3 * all.second * third - 4 * all.third * fourth;
  const auto &counts = all.counts, &shift = all.shift;
  const auto square = shift.square();
  const auto own_mean =
      counts * mean / number + 2 * counts * shift * second +
      3 * (all.own_second + counts * square) * third +
      4 * (all.own_third + 3 * shift * all.own_second + counts * square * shift) * fourth;
  return at::cat(
      {at::zeros_like(counts), own_mean, second + 3 * shift * third + 6 * square * fourth,
       third + 4 * shift * fourth, fourth.expand_as(shift)},
      1);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("moment_loss", moment_loss);
  m.impl("moment_loss_backward", moment_loss_backward);
}

}  // namespace torchvq
