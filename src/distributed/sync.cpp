#include <torchvq/distributed/sync.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <string_view>
#include <tuple>

#include <torch/library.h>
#include <unistd.h>

#include "distributed/traffic.h"

namespace torchvq::distributed {
namespace {

struct Counters {
  std::atomic<int64_t> all_reduces{0}, all_gathers{0}, broadcasts{0}, bytes{0};
};

Counters& counters() {
  static Counters instance;
  return instance;
}

std::mt19937_64 seeded_by_system() {
  std::random_device source;
  std::seed_seq bits{source(), source(), source(), source()};
  return std::mt19937_64(bits);
}

}  // namespace

bool enabled() {
  const char* value = std::getenv("TORCHVQ_SYNC");
  return value == nullptr || std::string_view(value) != "0";
}

void count_collective(Collective kind, int64_t bytes) {
  auto& all = counters();
  auto& number = kind == Collective::kAllReduce   ? all.all_reduces
                 : kind == Collective::kAllGather ? all.all_gathers
                                                  : all.broadcasts;
  number.fetch_add(1, std::memory_order_relaxed);
  all.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

Traffic traffic() {
  const auto& all = counters();
  return {all.all_reduces.load(), all.all_gathers.load(), all.broadcasts.load(), all.bytes.load()};
}

void reset_traffic() {
  auto& all = counters();
  for (auto* number : {&all.all_reduces, &all.all_gathers, &all.broadcasts, &all.bytes})
    number->store(0);
}

int64_t new_handle() {
  // Reading the system's random bits costs as much as the tensors of a small codebook,
  // so they are read only once, and again in a forked process, which would otherwise
  // repeat its parent's numbers.
  thread_local pid_t seeded_in = getpid();
  thread_local std::mt19937_64 generator = seeded_by_system();
  if (seeded_in != getpid()) {
    generator = seeded_by_system();
    seeded_in = getpid();
  }
  return static_cast<int64_t>(generator() >> 1);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::distributed;
  m.def("sync_enabled() -> bool", TORCH_FN(enabled));
  m.def("new_handle() -> int", TORCH_FN(new_handle));
  m.def("reset_traffic() -> ()", TORCH_FN(reset_traffic));
  m.def("traffic() -> (int all_reduces, int all_gathers, int broadcasts, int bytes)", [] {
    const auto sent = traffic();
    return std::make_tuple(sent.all_reduces, sent.all_gathers, sent.broadcasts, sent.bytes);
  });
}
