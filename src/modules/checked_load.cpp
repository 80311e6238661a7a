#include <torchvq/modules/checked_load.h>

#include <deque>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include <torchvq/modules/in_place_optimizer.h>

namespace torchvq::detail {
namespace {

using torch::serialize::InputArchive;

/// "VectorQuantize" of torchvq::VectorQuantizeImpl.
std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(name.rfind(':') + 1);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

void check_stored(const std::string& owner, const std::string& name, const at::Tensor& own,
                  InputArchive& archive, const std::string& key, bool is_buffer) {
  if (!own.defined()) return;
  at::Tensor stored;
  TORCH_CHECK_VALUE(archive.try_read(key, stored, is_buffer) && stored.defined(), owner,
                    ": expected the archive to have ", name, ", but got an archive without it");
  TORCH_CHECK_VALUE(stored.sizes() == own.sizes(), owner, ": expected ", name,
                    " of the archive to have shape ", own.sizes(), ", but got shape ",
                    stored.sizes());
  TORCH_CHECK_VALUE(stored.scalar_type() == own.scalar_type(), owner, ": expected ", name,
                    " of the archive to be ", own.scalar_type(), " as in the module, but got ",
                    stored.scalar_type(), " (cast the module before loading)");
}

void check_own_state(const std::string& owner, const std::string& prefix,
                     const torch::nn::Module& module, InputArchive& archive) {
  if (const auto* learner = dynamic_cast<const InPlaceOptimizer*>(&module)) {
    learner->read_in_place_optimizer(archive);
  }
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    check_stored(owner, prefix + item.key(), item.value(), archive, item.key(), false);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    check_stored(owner, prefix + item.key(), item.value(), archive, item.key(), true);
  }
}

struct Child {
  std::string prefix;
  const torch::nn::Module* module;
  InputArchive archive;
};

void add_children(const std::string& owner, const std::string& prefix,
                  const torch::nn::Module& module, InputArchive& archive,
                  std::deque<Child>& children) {
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    InputArchive own;
    const auto name = prefix + child.key();
    TORCH_CHECK_VALUE(archive.try_read(child.key(), own), owner, ": expected the archive to have ",
                      name, ", but got an archive without it");
    children.push_back({name + ".", child.value().get(), std::move(own)});
  }
}

}  // namespace

void check_archive(const torch::nn::Module& module, InputArchive& archive) {
  const auto owner = class_name(module);
  std::deque<Child> children;
  check_own_state(owner, "", module, archive);
  add_children(owner, "", module, archive, children);
  while (!children.empty()) {
    Child next = std::move(children.front());
    children.pop_front();
    check_own_state(owner, next.prefix, *next.module, next.archive);
    add_children(owner, next.prefix, *next.module, next.archive, children);
  }
}

}  // namespace torchvq::detail
