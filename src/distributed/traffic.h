// Counters of messages and bytes.
#pragma once

#include <cstdint>

namespace torchvq::distributed {

enum class Collective { kAllReduce, kAllGather, kBroadcast };

void count_collective(Collective kind, int64_t bytes);

}  // namespace torchvq::distributed
