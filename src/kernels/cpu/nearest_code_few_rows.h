// nearest_code for so few rows that packing the codebook would cost more than the scan: distances
// to the codes as they lie in memory, codes shared out over threads.
#pragma once

#include "kernels/cpu/nearest_code_search.h"

namespace torchvq::kernels {

/// Whether `task` is one for nearest_code_few_rows.
bool has_few_rows(const NearestCodeTask& task);

/// Writes the k nearest codes of task.rows rows of x (rows, dim). False, with nothing to rely on
/// written, for a row or codebook that needs the full search: not finite, or too large for float32.
bool nearest_code_few_rows(const NearestCodeTask& task, CpuLevel level,
                           const ParallelFor& parallel_for, const float* x, int64_t* indices);

}  // namespace torchvq::kernels
