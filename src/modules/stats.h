// The counts of a training step for usage statistics, and how they are read.
#pragma once

#include <string>
#include <vector>

#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

/// Clears the count of replaced codes.
void reset_replaced(const std::vector<Codebook>& codebooks);

/// Statistics from the tokens per code (H, K) of each codebook, over the ranks of a group, or of
/// this rank if the group is "". Undefined counts are 0.
std::vector<CodebookStats> stats_of(const std::vector<at::Tensor>& counts,
                                    const std::vector<const CodebookImpl*>& codebooks,
                                    const std::string& group);

/// Statistics of quantizers that share a process group: at most one all-reduce for all of them.
std::vector<CodebookStats> read_stats(const std::vector<const VectorQuantizeImpl*>& levels,
                                      bool synced);

}  // namespace torchvq::detail
