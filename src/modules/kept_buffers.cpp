#include <torchvq/modules/kept_buffers.h>

#include <utility>
#include <vector>

#include <c10/core/DefaultDtype.h>

#include "detail/precision.h"

namespace torchvq {

HalfPrecision::HalfPrecision() { note_cast(c10::get_default_dtype_as_scalartype()); }

torch::Tensor HalfPrecision::in_half_dtype(const torch::Tensor& codes) const {
  return half_dtype_ ? codes.to(*half_dtype_) : codes;
}

void HalfPrecision::note_cast(torch::Dtype dtype) {
  half_dtype_ = detail::is_half(dtype) ? std::optional(dtype) : std::nullopt;
}

}  // namespace torchvq

namespace torchvq::detail {

void cast_keeping_buffers(torch::nn::Module& module, const std::function<void()>& cast) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before;
  for (auto& buffer : module.buffers(/*recurse=*/false)) {
    before.emplace_back(buffer, buffer.variable_data());
  }
  cast();
  for (auto& [buffer, old] : before) {
    if (!old.is_floating_point() || is_half(buffer.scalar_type())) {
      buffer.set_data(old.to(buffer.device()));
    }
  }
}

}  // namespace torchvq::detail
