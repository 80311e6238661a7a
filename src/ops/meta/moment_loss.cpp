#include "ops/moment_loss.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::MomentLossTensors moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights) {
  detail::check_moment_loss(moments, targets, weights);
  const auto dim = (moments.sym_size(1) - 1) / 4;
  const auto statistic = [&] { return moments.new_empty_symint({dim}); };
  return {moments.new_empty({}), statistic(), statistic(), statistic(), statistic()};
}

at::Tensor moment_loss_backward(const at::Tensor& grad, const at::Tensor& moments,
                                at::ArrayRef<double> targets, at::ArrayRef<double> weights) {
  detail::check_moment_loss_backward(grad, moments, targets, weights);
  return moments.new_empty_symint(moments.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("moment_loss", moment_loss);
  m.impl("moment_loss_backward", moment_loss_backward);
}

}  // namespace torchvq
