// CUDA: the nearest value of each feature, and sums in the order of the CPU. More
// than kCudaLatentValues values fall back to the any-device kernel, whose sums have
// the order of the device.
#include "ops/latent_quantize.h"

#include <string>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "detail/precision.h"
#include "detail/scalar_levels.h"
#include "kernels/cuda/latent_quantize.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
using kernels::TORCHVQ_CUDA_NAMESPACE::LatentLevels;
using OptionalTensor = std::optional<at::Tensor>;

// The gradient visits every value for every token.
constexpr int64_t kCudaLatentValues = 4096;

LatentLevels cuda_latent_levels(at::IntArrayRef levels) {
  LatentLevels table;
  table.features = static_cast<int32_t>(levels.size());
  int32_t first = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    table.first[j] = first;
    table.levels[j] = static_cast<int32_t>(levels[j]);
    first += table.levels[j];
  }
  return table;
}

int64_t cuda_latent_blocks(int64_t tokens) {
  constexpr auto kBlock = kernels::TORCHVQ_CUDA_NAMESPACE::kLatentsPerBlock;
  return (tokens + kBlock - 1) / kBlock;
}

template <typename T>
std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_latent_rows(
    const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels, double weight,
    const at::Tensor& mask, const OnDevice& device) {
  auto codes = at::empty(x.sizes(), x.options()), loss = at::empty({}, x.options());
  auto indices =
      at::empty(x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)), x.options().dtype(at::kLong));
  const int64_t blocks = cuda_latent_blocks(indices.numel());
  const auto squares = at::empty({blocks}, values.options());
  const auto real = at::empty({blocks}, indices.options());
  kernels::TORCHVQ_CUDA_NAMESPACE::LatentQuantizeTask<T> task;
  task.x = x.const_data_ptr<T>();
  task.values = values.const_data_ptr<double>();
  task.mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  task.tokens = indices.numel();
  task.weight = weight;
  task.codes = codes.mutable_data_ptr<T>();
  task.indices = indices.mutable_data_ptr<int64_t>();
  task.squares = squares.mutable_data_ptr<double>();
  task.real = real.mutable_data_ptr<int64_t>();
  task.loss = loss.mutable_data_ptr<T>();
  check_launch("latent_quantize", kernels::TORCHVQ_CUDA_NAMESPACE::latent_quantize(
                                      cuda_latent_levels(levels), task, device.queue()));
  return {codes, indices, loss};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_latent_quantize(
    const at::Tensor& x_, const at::Tensor& values_, at::IntArrayRef levels, double commitment,
    double quantization, const OptionalTensor& mask_) {
  detail::check_latent_quantize(x_, values_, levels, commitment, quantization, mask_);
  if (detail::count_values(levels) > kCudaLatentValues) {
    return any_device_kernel<std::tuple<at::Tensor, at::Tensor, at::Tensor>>(
        "torchvq::latent_quantize", x_, values_, levels, commitment, quantization, mask_);
  }
  const OnDevice device(x_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  const auto values = values_.to(at::kDouble).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto run =
      x.scalar_type() == at::kDouble ? cuda_latent_rows<double> : cuda_latent_rows<float>;
  return run(x, values, levels, commitment + quantization, mask, device);
}

struct CudaLatentWeights {
  double commitment, quantization;
};

template <typename T>
std::tuple<at::Tensor, at::Tensor> cuda_latent_gradients(
    const at::Tensor& straight, const at::Tensor& grad_loss, const at::Tensor& x,
    const at::Tensor& codes, const at::Tensor& indices, at::IntArrayRef levels,
    const CudaLatentWeights& weights, const OnDevice& device) {
  auto grad_x = at::empty(x.sizes(), x.options());
  auto grad_values = at::empty({detail::count_values(levels)}, codes.options());
  const auto real = indices.ne(-1).sum();
  const auto sums =
      at::empty({cuda_latent_blocks(indices.numel()), grad_values.size(0)}, grad_loss.options());
  kernels::TORCHVQ_CUDA_NAMESPACE::LatentBackwardTask<T> task;
  task.straight = straight.const_data_ptr<T>();
  task.x = x.const_data_ptr<T>();
  task.codes = codes.const_data_ptr<T>();
  task.indices = indices.const_data_ptr<int64_t>();
  task.real = real.const_data_ptr<int64_t>();
  task.grad_loss = grad_loss.const_data_ptr<double>();
  task.tokens = indices.numel(), task.value_count = grad_values.size(0);
  task.commitment = weights.commitment, task.quantization = weights.quantization;
  task.sums = sums.mutable_data_ptr<double>();
  task.grad_x = grad_x.mutable_data_ptr<T>();
  task.grad_values = grad_values.mutable_data_ptr<T>();
  check_launch("latent_quantize_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::latent_quantize_backward(cuda_latent_levels(levels),
                                                                         task, device.queue()));
  return {grad_x, grad_values};
}

std::tuple<at::Tensor, at::Tensor> cuda_latent_quantize_backward(
    const at::Tensor& grad_codes, const at::Tensor& grad_loss, const at::Tensor& x_,
    const at::Tensor& codes_, const at::Tensor& indices_, at::IntArrayRef levels, double commitment,
    double quantization) {
  detail::check_latent_quantize_backward(grad_codes, grad_loss, x_, codes_, indices_, levels);
  if (detail::count_values(levels) > kCudaLatentValues) {
    return any_device_kernel<std::tuple<at::Tensor, at::Tensor>>(
        "torchvq::latent_quantize_backward", grad_codes, grad_loss, x_, codes_, indices_, levels,
        commitment, quantization);
  }
  const OnDevice device(x_);
  const auto dtype = detail::compute_dtype(x_);
  const auto run =
      dtype == at::kDouble ? cuda_latent_gradients<double> : cuda_latent_gradients<float>;
  auto [grad_x, grad_values] =
      run(grad_codes.to(dtype).contiguous(), grad_loss.to(at::kDouble).contiguous(),
          x_.to(dtype).contiguous(), codes_.contiguous(), indices_.contiguous(), levels,
          {commitment, quantization}, device);
  return {grad_x.to(x_.scalar_type()), grad_values};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(latent_quantize, cuda_latent_quantize)
TORCHVQ_CUDA_KERNEL(latent_quantize_backward, cuda_latent_quantize_backward)

}  // namespace torchvq
