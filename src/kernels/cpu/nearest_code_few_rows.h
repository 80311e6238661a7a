// nearest_code for so few rows that packing the codebook would cost more than the scan: distances
// to unpacked codes, with the codes divided among threads.
#pragma once

#include "kernels/cpu/nearest_code_search.h"

namespace torchvq::kernels {

/// Whether nearest_code_few_rows supports `task`.
template <typename T>
bool has_few_rows(const NearestCodeTaskOf<T>& task);

/// Writes the k nearest codes of task.rows rows of x (rows, dim). Returns false, with
/// indices unspecified, if a row or the codebook needs the full search: not finite,
/// or too large for float32.
template <typename T>
bool nearest_code_few_rows(const NearestCodeTaskOf<T>& task, CpuLevel level,
                           const ParallelFor& parallel_for, const T* x, int64_t* indices);

}  // namespace torchvq::kernels
