// CUDA: levels by bisection, with the bits of the CPU. Tables that do not fit a launch fall back to
// the any-device kernel, and so does the gradient of float64.
#include "ops/scalar_quantize.h"

#include <string>
#include <tuple>

#include <ATen/ops/empty.h>

#include "kernels/cuda/scalar_quantize.h"
#include "ops/cuda/kernel.h"
#include "ops/cuda/scalar_tables.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
using CudaScalarResult = std::tuple<at::Tensor, at::Tensor>;

template <typename T>
CudaScalarResult cuda_scalar_rows(const at::Tensor& x, const kernels::ScalarTables<T>& tables,
                                  const OnDevice& device) {
  auto codes = at::empty(x.sizes(), x.options());
  auto indices = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::ScalarQuantizeTask<T> task;
  task.x = x.const_data_ptr<T>();
  task.rows = indices.numel();
  task.codes = codes.mutable_data_ptr<T>();
  task.indices = indices.mutable_data_ptr<int64_t>();
  check_launch("scalar_quantize",
               kernels::TORCHVQ_CUDA_NAMESPACE::scalar_quantize(tables, task, device.queue()));
  return {codes, indices};
}

CudaScalarResult cuda_scalar_quantize(const at::Tensor& x_, at::IntArrayRef levels,
                                      std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize(x_, levels, bound_name);
  const OnDevice device(x_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  if (x.scalar_type() == at::kDouble) {
    if (const auto tables = detail::scalar_tables<double>(levels, bound)) {
      return cuda_scalar_rows(x, *tables, device);
    }
  } else if (const auto tables = detail::scalar_tables<float>(levels, bound)) {
    return cuda_scalar_rows(x, *tables, device);
  }
  return any_device_kernel<CudaScalarResult>("torchvq::scalar_quantize", x_, levels,
                                             std::string(bound_name));
}

at::Tensor cuda_scalar_quantize_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                         at::IntArrayRef levels, std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize_backward(grad_, x_, levels, bound_name);
  if (x_.scalar_type() == at::kDouble) {
    return detail::scalar_quantize_backward_any(grad_, x_, levels, bound_name);
  }
  const OnDevice device(x_);
  kernels::ScalarSlopes slopes;
  slopes.features = static_cast<int32_t>(levels.size());
  slopes.tanh = detail::is_tanh(bound) ? 1 : 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto formula = detail::scalar_formula(levels[j], bound);
    slopes.gain[j] = static_cast<float>(formula.gain);
    slopes.shift[j] = static_cast<float>(formula.shift);
  }
  const auto x = x_.to(at::kFloat).contiguous(), grad = grad_.to(at::kFloat).contiguous();
  auto result = at::empty(x.sizes(), x.options());
  check_launch("scalar_quantize_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::scalar_slope(
                   slopes, grad.const_data_ptr<float>(), x.const_data_ptr<float>(),
                   x.numel() / slopes.features, result.mutable_data_ptr<float>(), device.queue()));
  return result.to(x_.scalar_type());
}

}  // namespace

TORCHVQ_CUDA_KERNEL(scalar_quantize, cuda_scalar_quantize)
TORCHVQ_CUDA_KERNEL(scalar_quantize_backward, cuda_scalar_quantize_backward)

}  // namespace torchvq
