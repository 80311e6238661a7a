// What a training step leaves for statistics of use, and how they are read.
#pragma once

#include <vector>

#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

/// Forgets what the step before has replaced.
void begin_step(const std::vector<Codebook>& codebooks);

/// Statistics of quantizers that share a process group: at most one all-reduce for all of them.
std::vector<CodebookStats> read_stats(const std::vector<const VectorQuantizeImpl*>& levels,
                                      bool synced);

}  // namespace torchvq::detail
