#include <torchvq/modules/kept_buffers.h>

#include <utility>
#include <vector>

namespace torchvq::detail {

void cast_keeping_buffers(torch::nn::Module& module, const std::function<void()>& cast) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before;
  for (auto& buffer : module.buffers(/*recurse=*/false)) {
    before.emplace_back(buffer, buffer.variable_data());
  }
  cast();
  for (auto& [buffer, old] : before) {
    const auto now = buffer.scalar_type();
    if (!old.is_floating_point() || now == at::kHalf || now == at::kBFloat16) {
      buffer.set_data(old.to(buffer.device()));
    }
  }
}

}  // namespace torchvq::detail
