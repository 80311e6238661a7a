#include <torchvq/distributed/ranks.h>

#include <mutex>
#include <utility>

namespace torchvq::distributed {
namespace {

struct DefaultGroup {
  std::mutex mutex;
  std::string name;
};

DefaultGroup& instance() {
  static DefaultGroup group;
  return group;
}

}  // namespace

void set_default_group(std::string group_name) {
  auto& group = instance();
  const std::scoped_lock lock(group.mutex);
  group.name = std::move(group_name);
}

std::string default_group() {
  auto& group = instance();
  const std::scoped_lock lock(group.mutex);
  return group.name;
}

}  // namespace torchvq::distributed
