// CUDA: norms are summed in index order, with the bits of the CPU.
#include "ops/unit_vectors.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/unit_vectors.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
kernels::TORCHVQ_CUDA_NAMESPACE::Error fill_units(const at::Tensor& x, at::Tensor& units,
                                                  const OnDevice& device) {
  const int64_t dim = x.size(-1), rows = dim == 0 ? 0 : x.numel() / dim;
  return kernels::TORCHVQ_CUDA_NAMESPACE::unit_vectors(x.const_data_ptr<T>(), rows, dim,
                                                       units.mutable_data_ptr<T>(), device.queue());
}

at::Tensor cuda_unit_vectors(const at::Tensor& x_) {
  detail::check_unit_vectors(x_);
  const OnDevice device(x_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  auto units = at::empty(x.sizes(), x.options());
  const auto fill = x.scalar_type() == at::kDouble ? fill_units<double> : fill_units<float>;
  check_launch("unit_vectors", fill(x, units, device));
  return units;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(unit_vectors, cuda_unit_vectors)

}  // namespace torchvq
