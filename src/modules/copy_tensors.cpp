#include "modules/copy_tensors.h"

#include <ATen/core/grad_mode.h>

namespace torchvq::detail {
namespace {

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

void copy_each(const Tensors& from, const Tensors& to, const std::optional<c10::Device>& device) {
  TORCH_INTERNAL_ASSERT(from.size() == to.size());
  for (const auto& item : from) {
    const auto& source = item.value();
    auto target = to[item.key()];
    target.set_data(source.detach().to(source.options().device(device.value_or(source.device())),
                                       /*non_blocking=*/false, /*copy=*/true));
    if (source.is_floating_point()) {
      target.set_requires_grad(source.requires_grad());
    }
  }
}

}  // namespace

void copy_tensors(const torch::nn::Module& from, torch::nn::Module& to,
                  const std::optional<c10::Device>& device) {
  const at::NoGradGuard no_grad;
  copy_each(from.named_parameters(), to.named_parameters(), device);
  copy_each(from.named_buffers(), to.named_buffers(), device);
  const auto modules = from.modules();
  const auto copies = to.modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    // Parents come first, so that a child in another mode keeps its mode.
    copies[i]->train(modules[i]->is_training());
  }
}

}  // namespace torchvq::detail
