#include "ops/commitment_loss.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/cpu/commitment_loss.h"
#include "ops/cpu/mean_squared_difference.h"

namespace torchvq {
namespace {

at::Tensor commitment_loss(const at::Tensor& x_, const at::Tensor& codes_,
                           const std::optional<at::Tensor>& mask_) {
  detail::check_commitment_loss(x_, codes_, mask_);
  const auto dtype = detail::value_dtype(x_, codes_);
  const auto x = x_.to(dtype).contiguous(), codes = codes_.to(dtype).contiguous();
  const auto mask = mask_.has_value() ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  return detail::rounded_scalar(detail::mean_squared_difference(x, codes, mask_data), x);
}

template <typename T>
void write_gradients(const at::Tensor& x, const at::Tensor& codes, const bool* mask, T scale,
                     T* to) {
  const int64_t rows = x.size(0) * x.size(1), dim = x.size(2);
  const auto* const a = x.const_data_ptr<T>();
  const auto* const b = codes.const_data_ptr<T>();
  at::parallel_for(0, rows, 16384 / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool real = mask == nullptr || mask[row];
      for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
        to[i] = (real ? a[i] - b[i] : T(0)) * scale;
      }
    }
  });
}

at::Tensor commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x_,
                                    const at::Tensor& codes_,
                                    const std::optional<at::Tensor>& mask_) {
  detail::check_commitment_loss_backward(grad, x_, codes_, mask_);
  const auto x = x_.to(grad.scalar_type()).contiguous(),
             codes = codes_.to(grad.scalar_type()).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* const real = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const int64_t count = detail::count_tokens(real, x.size(0) * x.size(1)) * x.size(2);
  auto result = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "commitment_loss_backward", [&] {
    const auto scale =
        kernels::commitment_scale(*grad.const_data_ptr<scalar_t>(), count, mask.defined());
    write_gradients(x, codes, real, scale, result.mutable_data_ptr<scalar_t>());
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("commitment_loss", commitment_loss);
  m.impl("commitment_loss_backward", commitment_loss_backward);
}

}  // namespace torchvq
