// CUDA: packs signs into the bits of an index, and unpacks them.
#include "ops/sign_quantize.h"

#include <tuple>

#include <ATen/ops/empty.h>

#include "detail/precision.h"
#include "kernels/cuda/scalar_quantize.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
std::tuple<at::Tensor, at::Tensor> cuda_sign_rows(const at::Tensor& x, double scale,
                                                  const OnDevice& device) {
  auto codes = at::empty(x.sizes(), x.options());
  auto indices = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::SignQuantizeTask<T> task;
  task.x = x.const_data_ptr<T>();
  task.rows = indices.numel(), task.bits = x.size(-1);
  task.scale = static_cast<T>(scale);
  task.codes = codes.mutable_data_ptr<T>();
  task.indices = indices.mutable_data_ptr<int64_t>();
  check_launch("sign_quantize",
               kernels::TORCHVQ_CUDA_NAMESPACE::sign_quantize(task, device.queue()));
  return {codes, indices};
}

std::tuple<at::Tensor, at::Tensor> cuda_sign_quantize(const at::Tensor& x_, double scale) {
  detail::check_sign_quantize(x_, scale);
  const OnDevice device(x_);
  const auto x = x_.to(detail::value_dtype(x_, x_)).contiguous();
  return x.scalar_type() == at::kDouble ? cuda_sign_rows<double>(x, scale, device)
                                        : cuda_sign_rows<float>(x, scale, device);
}

template <typename T>
at::Tensor cuda_decoded_signs(const at::Tensor& indices, at::Tensor codes, double scale,
                              const OnDevice& device) {
  kernels::TORCHVQ_CUDA_NAMESPACE::SignDecodeTask<T> task;
  task.indices = indices.const_data_ptr<int64_t>();
  task.rows = indices.numel(), task.bits = codes.size(-1);
  task.scale = static_cast<T>(scale);
  task.codes = codes.mutable_data_ptr<T>();
  check_launch("sign_decode", kernels::TORCHVQ_CUDA_NAMESPACE::sign_decode(task, device.queue()));
  return codes;
}

at::Tensor cuda_sign_decode(const at::Tensor& indices_, int64_t bits, double scale,
                            std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_sign_decode(indices_, bits, scale, dtype);
  const OnDevice device(indices_);
  const auto indices = indices_.contiguous();
  auto sizes = indices.sizes().vec();
  sizes.push_back(bits);
  const auto codes = at::empty(sizes, indices.options().dtype(dtype));
  return dtype == at::kDouble ? cuda_decoded_signs<double>(indices, codes, scale, device)
                              : cuda_decoded_signs<float>(indices, codes, scale, device);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(sign_quantize, cuda_sign_quantize)
TORCHVQ_CUDA_KERNEL(sign_decode, cuda_sign_decode)

}  // namespace torchvq
