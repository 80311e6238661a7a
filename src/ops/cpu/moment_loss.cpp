#include "ops/moment_loss.h"

#include <array>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/cpu/moments.h"

namespace torchvq {
namespace {

/// (W, 1 + 4 D) in float64.
detail::MomentRows rows_of(const at::Tensor& numbers) {
  return {numbers.const_data_ptr<double>(), numbers.size(0), (numbers.size(1) - 1) / 4};
}

detail::MomentLossTensors moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights) {
  detail::check_moment_loss(moments, targets, weights);
  const auto numbers = moments.to(at::kDouble).contiguous();
  const auto all = rows_of(numbers);
  std::vector<double> statistics(static_cast<size_t>(4 * all.dim));
  auto loss = at::empty({}, numbers.options());
  *loss.mutable_data_ptr<double>() =
      detail::loss_of_moments(all, targets, weights, statistics.data());
  const auto give = [&](const at::Tensor& of) { return of.to(moments.scalar_type()); };
  const auto statistic = [&](int64_t k) {
    auto values = at::empty({all.dim}, numbers.options());
    std::copy_n(statistics.data() + k * all.dim, all.dim, values.mutable_data_ptr<double>());
    return give(values);
  };
  return {give(loss), statistic(0), statistic(1), statistic(2), statistic(3)};
}

at::Tensor moment_loss_backward(const at::Tensor& grad, const at::Tensor& moments,
                                at::ArrayRef<double> targets, at::ArrayRef<double> weights) {
  detail::check_moment_loss_backward(grad, moments, targets, weights);
  const auto numbers = moments.to(at::kDouble).contiguous();
  auto result = at::zeros(numbers.sizes(), numbers.options());
  detail::fill_moment_slopes(rows_of(numbers), grad.item<double>(), targets, weights,
                             result.mutable_data_ptr<double>());
  return result.to(moments.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("moment_loss", moment_loss);
  m.impl("moment_loss_backward", moment_loss_backward);
}

}  // namespace torchvq
