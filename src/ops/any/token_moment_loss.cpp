// Any device: calls the two operators that it combines.
#include "ops/token_moment_loss.h"

#include <algorithm>

#include <torch/library.h>

#include <torchvq/ops/token_moments.h>

#include "detail/op_handle.h"
#include "detail/precision.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Numbers = at::ArrayRef<double>;

detail::TokenMomentLossTensors token_moment_loss(const at::Tensor& x, Numbers targets,
                                                 Numbers weights, const OptionalTensor& mask) {
  detail::check_token_moment_loss(x, targets, weights, mask);
  ops::MomentTargets wanted{};
  std::copy(targets.begin(), targets.end(), wanted.targets.begin());
  std::copy(weights.begin(), weights.end(), wanted.weights.begin());
  const auto moments = ops::token_moments(x, mask);
  const auto found = ops::moment_loss(moments.unsqueeze(0), wanted);
  const auto give = [dtype = detail::value_dtype(x, x)](const at::Tensor& of) {
    return of.to(dtype);
  };
  return {give(found.loss),     give(found.mean),     give(found.variance),
          give(found.skewness), give(found.kurtosis), moments};
}

at::Tensor token_moment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& moments, Numbers targets, Numbers weights,
                                      const OptionalTensor& mask) {
  detail::check_token_moment_loss_backward(grad, x, moments, targets, weights, mask);
  static auto to_moments =
      detail::op_handle<at::Tensor(const at::Tensor&, const at::Tensor&, Numbers, Numbers)>(
          "torchvq::moment_loss_backward");
  static auto to_x =
      detail::op_handle<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const OptionalTensor&)>("torchvq::token_moments_backward");
  const auto slopes =
      to_moments.call(grad.to(moments.scalar_type()), moments.unsqueeze(0), targets, weights);
  return to_x.call(slopes.squeeze(0), x, moments, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("token_moment_loss", token_moment_loss);
  m.impl("token_moment_loss_backward", token_moment_loss_backward);
}

}  // namespace torchvq
