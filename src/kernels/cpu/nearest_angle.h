// Nearest unit vectors for a few rows, where normalizing a whole codebook would cost more than the
// search: raw codes are screened by their angles, and only close ones are normalized and compared.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Whether nearest_angle supports this number of rows of `dim` features.
bool has_few_angles(int64_t rows, int64_t dim, int64_t size);

/// For each of `count` unit rows, writes the index of the nearest code of a codebook (size, 8),
/// with codes taken as unit vectors, by the contract of nearest_code; -1 for a row that is not
/// finite. Returns false, with indices unspecified, if a code's norm is far from 1.
bool nearest_angle(const float* rows, int64_t count, const float* codebook, int64_t size,
                   CpuLevel level, int64_t* indices);

}  // namespace torchvq::kernels
