// The nearest of unit vectors for a few rows, where making unit vectors of a whole codebook would
// cost more than the search: codes are screened by their angles as they lie, and those that come
// close are compared as unit vectors.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Whether nearest_angle has a way for so many rows of `dim` features.
bool has_few_angles(int64_t rows, int64_t dim, int64_t size);

/// Writes the index of the code of a codebook (size, 8), made a unit vector, that is nearest to each
/// of `count` unit rows: by the contract of nearest_code; -1 for a row that is not finite. False, with
/// nothing to rely on written, where a code's norm is far from 1.
bool nearest_angle(const float* rows, int64_t count, const float* codebook, int64_t size,
                   CpuLevel level, int64_t* indices);

}  // namespace torchvq::kernels
