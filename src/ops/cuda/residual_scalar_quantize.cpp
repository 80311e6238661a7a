// CUDA: all levels in one pass over the values, with the bits of the CPU. float64, and tables that
// do not fit a launch, fall back to the any-device kernel.
#include "ops/residual_scalar_quantize.h"

#include <tuple>

#include <ATen/ops/empty.h>

#include "kernels/cuda/scalar_quantize.h"
#include "ops/cuda/kernel.h"
#include "ops/cuda/scalar_tables.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

std::optional<kernels::ScalarTables<float>> cuda_stack_tables(const at::Tensor& x,
                                                              at::IntArrayRef levels,
                                                              detail::ScalarBound bound) {
  if (x.scalar_type() == at::kDouble) return std::nullopt;
  return detail::scalar_tables<float>(levels, bound);
}

std::tuple<at::Tensor, at::Tensor> cuda_residual_scalar_quantize(const at::Tensor& x_,
                                                                 at::IntArrayRef levels,
                                                                 const at::Tensor& scales_,
                                                                 std::string_view bound_name) {
  const auto bound = detail::check_residual_scalar_quantize(x_, levels, scales_, bound_name);
  const auto tables = cuda_stack_tables(x_, levels, bound);
  if (!tables) return detail::residual_scalar_quantize_any(x_, levels, scales_, bound_name);
  const OnDevice device(x_);
  const auto x = x_.to(at::kFloat).contiguous(), scales = scales_.to(at::kFloat).contiguous();
  auto quantized = at::empty(x.sizes(), x.options());
  auto sizes = x.sizes().vec();
  sizes.back() = scales.size(0);
  auto indices = at::empty(sizes, x.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::ScalarStackTask task;
  task.x = x.const_data_ptr<float>();
  task.scales = scales.const_data_ptr<float>();
  task.rows = x.numel() / tables->features, task.quantizers = scales.size(0);
  task.quantized = quantized.mutable_data_ptr<float>();
  task.indices = indices.mutable_data_ptr<int64_t>();
  check_launch("residual_scalar_quantize",
               kernels::TORCHVQ_CUDA_NAMESPACE::scalar_walk(*tables, task, device.queue()));
  return {quantized, indices};
}

at::Tensor cuda_residual_scalar_quantize_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                                  at::IntArrayRef levels, const at::Tensor& scales_,
                                                  std::string_view bound_name) {
  const auto bound =
      detail::check_residual_scalar_quantize_backward(grad_, x_, levels, scales_, bound_name);
  const auto tables = cuda_stack_tables(x_, levels, bound);
  if (!tables) {
    return detail::residual_scalar_quantize_backward_any(grad_, x_, levels, scales_, bound_name);
  }
  const OnDevice device(x_);
  const auto x = x_.to(at::kFloat).contiguous(), grad = grad_.to(at::kFloat).contiguous();
  const auto scales = scales_.to(at::kFloat).contiguous();
  auto result = at::empty(x.sizes(), x.options());
  kernels::TORCHVQ_CUDA_NAMESPACE::ScalarStackSlopeTask task;
  task.grad = grad.const_data_ptr<float>();
  task.x = x.const_data_ptr<float>();
  task.scales = scales.const_data_ptr<float>();
  task.rows = x.numel() / tables->features, task.quantizers = scales.size(0);
  task.tanh = detail::is_tanh(bound);
  task.to = result.mutable_data_ptr<float>();
  check_launch("residual_scalar_quantize_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::scalar_walk_slope(*tables, task, device.queue()));
  return result.to(x_.scalar_type());
}

}  // namespace

TORCHVQ_CUDA_KERNEL(residual_scalar_quantize, cuda_residual_scalar_quantize)
TORCHVQ_CUDA_KERNEL(residual_scalar_quantize_backward, cuda_residual_scalar_quantize_backward)

}  // namespace torchvq
