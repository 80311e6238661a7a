// nearest_code for up to some hundred rows, where packing the codebook would cost more
// than the scan: rows are packed into lanes and multiplied with unpacked codes, which
// are divided among threads.
#pragma once

#include "kernels/cpu/nearest_code_search.h"

namespace torchvq::kernels {

/// Whether nearest_code_unpacked supports `task` and pays off.
template <typename T>
bool worth_unpacked(const NearestCodeTaskOf<T>& task);

/// Writes the k nearest codes of each of task.rows rows of x (rows, dim). Returns false, with
/// indices unspecified, for rows or a codebook that need the full search: not finite, too large or
/// small for float32, or so many rows undecided that the codebook must contain duplicates.
template <typename T>
bool nearest_code_unpacked(const NearestCodeTaskOf<T>& task, CpuLevel level,
                           const ParallelFor& parallel_for, const T* x, int64_t* indices);

}  // namespace torchvq::kernels
