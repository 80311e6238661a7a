#include "io/unfinished_files.h"

#include <torchvq/io/output_file.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>

namespace torchvq::io {
namespace {

enum State : int { kFree, kBusy, kLive };

struct Slot {
  std::atomic<int> state{kFree};
  char path[PATH_MAX] = {};
};

// Fixed storage: a handler can neither lock nor follow a pointer that another thread may free.
static_assert(std::atomic<int>::is_always_lock_free);
constinit std::array<Slot, 16> slots;

}  // namespace

int enter_unfinished_file(const std::string& path) noexcept {
  if (path.size() >= PATH_MAX) return -1;
  for (size_t i = 0; i < slots.size(); ++i) {
    int expected = kFree;
    if (!slots[i].state.compare_exchange_strong(expected, kBusy)) continue;
    std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
    slots[i].state.store(kLive);
    return static_cast<int>(i);
  }
  return -1;
}

void leave_unfinished_file(int slot) noexcept {
  if (slot >= 0) slots[static_cast<size_t>(slot)].state.store(kFree);
}

void remove_unfinished_files() noexcept {
  for (auto& slot : slots) {
    if (slot.state.load() == kLive) ::unlink(slot.path);
  }
}

}  // namespace torchvq::io
