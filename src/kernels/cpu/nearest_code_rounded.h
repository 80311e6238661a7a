// nearest_code for 6 to some hundred rows on processors that multiply bytes: the codes are rounded to 8 bits for this one
// search, as prepare_codes does for many.
#pragma once

#include "kernels/cpu/nearest_code_search.h"

namespace torchvq::kernels {

/// Whether `task` is one for nearest_code_rounded at this level.
bool worth_rounded(const NearestCodeTask& task, CpuLevel level);

/// Writes the nearest code of each of task.rows rows of x (rows, dim). False, with nothing to rely on
/// written, for rows or codes that 8 bits cannot bound, or where too many codes are close to each other.
bool nearest_code_rounded(const NearestCodeTask& task, CpuLevel level,
                          const ParallelFor& parallel_for, const float* x, int64_t* indices);

}  // namespace torchvq::kernels
