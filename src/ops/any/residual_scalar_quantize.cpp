// Any device: level by level, the reference for the CPU kernel.
#include "ops/residual_scalar_quantize.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/scalar_quantize.h>

#include "ops/scalar_quantize.h"

namespace torchvq {
namespace detail {

std::tuple<at::Tensor, at::Tensor> residual_scalar_quantize_any(const at::Tensor& x,
                                                                at::IntArrayRef levels,
                                                                const at::Tensor& scales,
                                                                std::string_view bound) {
  check_residual_scalar_quantize(x, levels, scales, bound);
  auto left = x.to(compute_dtype(x)).contiguous(), total = at::zeros_like(left);
  std::vector<at::Tensor> chosen;
  for (const auto& scale : scales.to(left.scalar_type()).unbind(0)) {
    const auto [codes, indices] = ops::scalar_quantize(left / scale, levels, std::string(bound));
    const auto taken = codes * scale;
    total = total + taken;
    left = left - taken;
    chosen.push_back(indices);
  }
  return {total, at::stack(chosen, -1)};
}

at::Tensor residual_scalar_quantize_backward_any(const at::Tensor& grad, const at::Tensor& x,
                                                 at::IntArrayRef levels, const at::Tensor& scales,
                                                 std::string_view bound) {
  check_residual_scalar_quantize_backward(grad, x, levels, scales, bound);
  auto left = x.to(compute_dtype(x)), closed = at::ones_like(left);
  const auto one = at::ones_like(left);
  for (const auto& scale : scales.to(left.scalar_type()).unbind(0)) {
    const auto z = left / scale, finite = z.isfinite();
    closed = closed * (1 - scalar_quantize_backward_any(one, z, levels, bound));
    // Feature by feature, where scalar_quantize() makes NaN of a row for one value.
    const auto codes =
        ops::scalar_quantize(at::where(finite, z, 0), levels, std::string(bound))
            .first.masked_fill_(finite.logical_not(), std::numeric_limits<double>::quiet_NaN());
    left = left - codes * scale;
  }
  return (grad * (1 - closed)).to(x.scalar_type()).contiguous();
}

}  // namespace detail

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_scalar_quantize", detail::residual_scalar_quantize_any);
  m.impl("residual_scalar_quantize_backward", detail::residual_scalar_quantize_backward_any);
}

}  // namespace torchvq
