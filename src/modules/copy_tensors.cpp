#include "modules/copy_tensors.h"

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>

#include <torchvq/modules/kept_buffers.h>

namespace torchvq::detail {
namespace {

using Tensors = torch::OrderedDict<std::string, at::Tensor>;
using Names = std::vector<std::string>;

/// The names in `some` that are not in `others`.
std::string surplus(const Names& some, const Names& others) {
  std::string found;
  for (const auto& name : some) {
    if (std::find(others.begin(), others.end(), name) != others.end()) continue;
    found += (found.empty() ? "" : ", ") + name;
  }
  return found.empty() ? "none" : found;
}

void check_same_names(const char* kind, const Names& from, const Names& to) {
  TORCH_CHECK_VALUE(from == to, "clone: expected the module to have the ", kind,
                    " of its construction, but got additional ones: ", surplus(from, to),
                    ", and missing ones: ", surplus(to, from));
}

void copy_each(const Tensors& from, const Tensors& to, const std::optional<c10::Device>& device) {
  for (const auto& item : from) {
    const auto& source = item.value();
    const auto& target = to[item.key()];
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
  check_same_names("submodules", from.named_modules().keys(), to.named_modules().keys());
  check_same_names("parameters", from.named_parameters().keys(), to.named_parameters().keys());
  check_same_names("buffers", from.named_buffers().keys(), to.named_buffers().keys());
  copy_each(from.named_parameters(), to.named_parameters(), device);
  copy_each(from.named_buffers(), to.named_buffers(), device);
  const auto modules = from.modules();
  const auto copies = to.modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    // Parents come first, so that a child in another mode keeps its mode.
    copies[i]->train(modules[i]->is_training());
    const auto* half = dynamic_cast<const HalfPrecision*>(modules[i].get());
    if (half != nullptr) dynamic_cast<HalfPrecision&>(*copies[i]) = *half;
  }
}

}  // namespace torchvq::detail
