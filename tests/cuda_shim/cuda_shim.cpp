// Fibers and their collectives. One launch at a time, on the calling thread.
#include "cuda_shim.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "fiber.h"

namespace torchvq::cuda_shim {

uint3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr size_t kMostShared = 227 * 1024;  // per block, on the largest cards

struct Copy {
  void* to;
  const void* from;
};

struct Thread {
  Fiber fiber;
  bool done = true;
  std::vector<std::vector<Copy>> groups{1};  // the last one is open
};

struct Warp {
  Exchanged slots[2][32];
  unsigned arrived = 0;
  uint64_t round = 0;
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  unsigned count = 0, alive = 0, arrived = 0, current = 0;
  uint64_t round = 0, progress = 0;
  std::vector<unsigned char> shared;
  const std::function<void()>* body = nullptr;
  const char* failure = nullptr;
  Context scheduler;
};

Block block;
int64_t launched = 0;
std::mt19937 generator(1);

void release_barrier() {
  if (block.alive == 0 || block.arrived < block.alive) return;
  block.arrived = 0;
  ++block.round;
  ++block.progress;
}

void give_way() {
  Thread& thread = *block.threads[block.current];
  const uint3 index = thread_index;
  switch_context(thread.fiber.context, block.scheduler);
  thread_index = index;
}

void run_thread() {
  (*block.body)();
  Thread& thread = *block.threads[block.current];
  thread.done = true;
  --block.alive;
  ++block.progress;
  release_barrier();  // a thread that has returned is not waited for
  leave_context(thread.fiber.context, block.scheduler);
}

std::vector<unsigned> order_of_threads() {
  std::vector<unsigned> order(block.count);
  std::iota(order.begin(), order.end(), 0u);
  if (settings().order == Order::kBackward) std::reverse(order.begin(), order.end());
  if (settings().order == Order::kShuffled) std::shuffle(order.begin(), order.end(), generator);
  return order;
}

void start_block(size_t shared) {
  block.alive = block.count;
  block.arrived = 0;
  block.warps.assign((block.count + 31) / 32, Warp());
  block.shared.assign(shared, 0xff);  // NaN in every floating-point type
  while (block.threads.size() < block.count) block.threads.push_back(std::make_unique<Thread>());
  for (unsigned i = 0; i < block.count; ++i) {
    Thread& thread = *block.threads[i];
    thread.done = false;
    thread.groups.assign(1, {});
    thread.fiber.start(run_thread);
  }
}

void run_block(size_t shared) {
  start_block(shared);
  while (block.alive > 0) {
    const uint64_t before = block.progress;
    for (const unsigned i : order_of_threads()) {
      if (block.threads[i]->done) continue;
      block.current = i;
      thread_index = {i, 0, 0};
      switch_context(block.scheduler, block.threads[i]->fiber.context);
      if (block.failure != nullptr) throw block.failure;
    }
    if (block.progress == before)
      throw "cuda_shim: threads wait at a barrier that others do not reach";
  }
  for (unsigned i = 0; i < block.count; ++i) {
    for (const auto& group : block.threads[i]->groups)
      if (!group.empty()) throw "cuda_shim: a thread ends with copies under way";
  }
}

}  // namespace

Settings& settings() {
  static Settings chosen;
  return chosen;
}

int64_t launches() { return launched; }

unsigned char* shared_bytes() { return block.shared.data(); }

void run(unsigned blocks, unsigned tasks, unsigned threads, size_t shared,
         const std::function<void()>& thread) {
  if (blocks == 0 || tasks == 0 || threads == 0 || threads > kMostThreads || shared > kMostShared)
    throw "cuda_shim: invalid configuration of a launch";
  static std::mutex one_launch;
  const std::scoped_lock lock(one_launch);
  ++launched;
  generator.seed(1);
  block.count = threads;
  block.body = &thread;
  block.failure = nullptr;
  block_size = {threads, 1, 1};
  grid_size = {blocks, tasks, 1};
  const unsigned all = blocks * tasks;
  for (unsigned i = 0; i < all; ++i) {
    const unsigned at = settings().order == Order::kBackward ? all - 1 - i : i;
    block_index = {at % blocks, at / blocks, 0};
    run_block(shared);
  }
}

void barrier() {
  const uint64_t round = block.round;
  ++block.arrived;
  release_barrier();
  while (block.round == round) give_way();
}

const Exchanged* exchange(const Exchanged& own) {
  Warp& warp = block.warps[thread_index.x / 32];
  const unsigned lanes = std::min(32u, block.count - thread_index.x / 32 * 32);
  const uint64_t round = warp.round;
  // Two sets of slots alternate: none is reused before all lanes have read the one of this round.
  Exchanged* slots = warp.slots[round & 1];
  slots[thread_index.x % 32] = own;
  if (++warp.arrived == lanes) {
    warp.arrived = 0;
    ++warp.round;
    ++block.progress;
  }
  while (warp.round == round) give_way();
  return slots;
}

void fail(const char* message) {
  block.failure = message;
  give_way();
}

void copy_later(void* to, const void* from) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    std::fputs("cuda_shim: an asynchronous copy is not aligned to 16 bytes\n", stderr);
    std::abort();
  }
  block.threads[thread_index.x]->groups.back().push_back({to, from});
}

void commit_copies() { block.threads[thread_index.x]->groups.emplace_back(); }

void wait_for_copies(int left) {
  auto& groups = block.threads[thread_index.x]->groups;
  while (static_cast<int>(groups.size()) - 1 > left) {
    for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

}  // namespace torchvq::cuda_shim
