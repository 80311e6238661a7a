#include "ops/token_moment_loss.h"

#include <vector>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "ops/cpu/moment_tokens.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Numbers = at::ArrayRef<double>;

detail::TokenMomentLossTensors token_moment_loss(const at::Tensor& x, Numbers targets,
                                                 Numbers weights, const OptionalTensor& mask) {
  detail::check_token_moment_loss(x, targets, weights, mask);
  const detail::MomentInput input(x, mask);
  const int64_t dim = x.size(-1);
  auto moments = at::empty({detail::count_moments(dim)}, input.x.options().dtype(at::kDouble));
  auto* const numbers = moments.mutable_data_ptr<double>();
  input.visit([&](const auto& tokens) { detail::fill_moments(tokens, numbers); });
  std::vector<double> statistics(static_cast<size_t>(4 * dim));
  const double loss =
      detail::loss_of_moments({numbers, 1, dim}, targets, weights, statistics.data());
  const auto statistic = [&](int64_t k) {
    auto values = at::empty({dim}, input.x.options());
    const double* const from = statistics.data() + k * dim;
    if (values.scalar_type() == at::kDouble) {
      std::copy_n(from, dim, values.mutable_data_ptr<double>());
    } else {
      std::transform(from, from + dim, values.mutable_data_ptr<float>(),
                     [](double value) { return static_cast<float>(value); });
    }
    return values;
  };
  return {detail::rounded_scalar(loss, input.x),
          statistic(0),
          statistic(1),
          statistic(2),
          statistic(3),
          moments};
}

at::Tensor token_moment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& moments_, Numbers targets, Numbers weights,
                                      const OptionalTensor& mask) {
  detail::check_token_moment_loss_backward(grad, x, moments_, targets, weights, mask);
  const detail::MomentInput input(x, mask);
  const auto moments = moments_.contiguous();
  const auto* const numbers = moments.const_data_ptr<double>();
  const int64_t dim = x.size(-1);
  std::vector<double> to_moments(static_cast<size_t>(detail::count_moments(dim)));
  detail::fill_moment_slopes({numbers, 1, dim}, grad.item<double>(), targets, weights,
                             to_moments.data());
  const detail::MomentSlopes slopes(to_moments.data(), numbers, dim);
  return detail::token_slopes(input, slopes).to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("token_moment_loss", token_moment_loss);
  m.impl("token_moment_loss_backward", token_moment_loss_backward);
}

}  // namespace torchvq
