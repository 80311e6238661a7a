#include <torchvq/modules/kept_buffers.h>

#include <utility>
#include <vector>

#include "detail/precision.h"

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
