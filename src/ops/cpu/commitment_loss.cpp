#include "ops/commitment_loss.h"

#include <torch/library.h>

#include "detail/precision.h"
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

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("commitment_loss", commitment_loss); }

}  // namespace torchvq
