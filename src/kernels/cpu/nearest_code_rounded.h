// nearest_code for 6 to some hundred rows on processors that multiply bytes: the codes are rounded to 8 bits for one
// search, as prepare_codes does for many searches.
#pragma once

#include "kernels/cpu/nearest_code_search.h"

namespace torchvq::kernels {

/// Whether nearest_code_rounded supports `task` at this level and pays off.
bool worth_rounded(const NearestCodeTask& task, CpuLevel level);

/// Writes the nearest code of each of task.rows rows of x (rows, dim). Returns false, with indices unspecified, for
/// rows or codes whose 8-bit scores have no bound, or where too many codes are close to each other.
bool nearest_code_rounded(const NearestCodeTask& task, CpuLevel level,
                          const ParallelFor& parallel_for, const float* x, int64_t* indices);

}  // namespace torchvq::kernels
