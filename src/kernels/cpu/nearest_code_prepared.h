// nearest_code for up to some hundred rows on codes in 8 bits: bytes screen, the codes themselves decide.
#pragma once

#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::kernels {

/// Whether `prepared` serves `task`.
bool has_prepared(const NearestCodeTask& task, const PreparedCodes& prepared);

/// `prepared`: a copy of the codes of `task`; with its bias, where it has one.
/// Writes the nearest code of each of task.rows rows of x (rows, dim). False, with nothing to rely on
/// written, for rows that screening cannot bound, or to which too many codes are too close.
bool nearest_code_prepared(const NearestCodeTask& task, const PreparedCodes& prepared,
                           CpuLevel level, const ParallelFor& parallel_for, const float* x,
                           int64_t* indices);

}  // namespace torchvq::kernels
