// How kernels run in parallel without knowing torch; ops/cpu/in_parallel.h gives torch's way.
#pragma once

#include <cstdint>
#include <functional>

namespace torchvq::kernels {

/// Runs body(begin, end) over ranges that cover [0, count), each at least `grain` long, possibly in
/// parallel.
using ParallelFor = std::function<void(int64_t count, int64_t grain,
                                       const std::function<void(int64_t, int64_t)>& body)>;

}  // namespace torchvq::kernels
