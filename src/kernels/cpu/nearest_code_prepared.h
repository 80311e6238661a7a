// nearest_code for up to 191 rows on codes in 8 bits: bytes screen, the original codes decide.
#pragma once

#include <optional>

#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::kernels {

/// Whether nearest_code_prepared supports `task` with `prepared`.
bool has_prepared(const NearestCodeTask& task, const PreparedCodes& prepared);

/// Writes the nearest code of each of task.rows rows of x (rows, dim). `prepared` is a copy of the
/// codes of `task`, with its bias if there is one. Returns false, with indices unspecified, for
/// rows that screening cannot bound or that have too many close codes: an eighth of them, or more
/// than most_close on average.
bool nearest_code_prepared(const NearestCodeTask& task, const PreparedCodes& prepared,
                           CpuLevel level, const ParallelFor& parallel_for, const float* x,
                           int64_t* indices, std::optional<int64_t> most_close = std::nullopt);

}  // namespace torchvq::kernels
