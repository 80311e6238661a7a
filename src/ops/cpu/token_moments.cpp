#include "ops/token_moments.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/moment_tokens.h"
#include "ops/cpu/moments.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor token_moments(const at::Tensor& x, const OptionalTensor& mask) {
  detail::check_token_moments(x, mask);
  const detail::MomentInput input(x, mask);
  auto moments =
      at::empty({detail::count_moments(x.size(-1))}, input.x.options().dtype(at::kDouble));
  input.visit([&](const auto& tokens) {
    detail::fill_moments(tokens, moments.mutable_data_ptr<double>());
  });
  return moments;
}

at::Tensor token_moments_backward(const at::Tensor& grad_, const at::Tensor& x,
                                  const at::Tensor& moments_, const OptionalTensor& mask) {
  detail::check_token_moments_backward(grad_, x, moments_, mask);
  const detail::MomentInput input(x, mask);
  const auto moments = moments_.contiguous(), grad = grad_.to(at::kDouble).contiguous();
  const detail::MomentSlopes slopes(grad.const_data_ptr<double>(), moments.const_data_ptr<double>(),
                                    x.size(-1));
  return detail::token_slopes(input, slopes).to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("token_moments", token_moments);
  m.impl("token_moments_backward", token_moments_backward);
}

}  // namespace torchvq
