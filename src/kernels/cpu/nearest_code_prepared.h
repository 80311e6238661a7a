// nearest_code on codes in 8 bits, for a block of rows: bytes screen, the original codes decide.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/prepared_codes.h"
#include "kernels/cpu/prepared_scan.h"

namespace torchvq::kernels {

/// Whether nearest_code_prepared supports `task` with `prepared`.
bool has_prepared(const NearestCodeTask& task, const PreparedCodes& prepared);

/// A copy of the codes of `task`, with its bias if there is one, and what all blocks of rows need of it.
struct DescribedCodes {
  DescribedCodes(const NearestCodeTask& task, const PreparedCodes& prepared);

  PreparedCodes codes;
  std::vector<PreparedBlock> blocks;
};

/// Writes the nearest code of each of task.rows rows of x (rows, dim). Returns false, with indices unspecified, for
/// rows that screening cannot bound or that have too many close codes: an eighth of them, or more
/// than most_close on average.
bool nearest_code_prepared(const NearestCodeTask& task, const DescribedCodes& prepared,
                           CpuLevel level, const ParallelFor& parallel_for, const float* x,
                           int64_t* indices, std::optional<int64_t> most_close = std::nullopt);

}  // namespace torchvq::kernels
