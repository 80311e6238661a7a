// Adds rows of floating point into int64 fixed point. Torch-free; serial on a range of rows.
//
// Rounding by a magic number: adding 1.5 * 2^52 to a float64 below 2^51 leaves the rounded
// integer (ties to even) in the low bits, so the sum of the bit patterns minus count times the
// magic pattern is the sum of the integers modulo 2^64. The loop is a conversion, a
// multiplication, an addition and an integer addition per element: it vectorizes on every
// instruction set and runs at the speed of reading x.
#pragma once

#include <cstdint>

namespace torchvq::kernels {

/// sums[d] += sum over rows r of round(x[r * dim + d] * scale). `rows` lists `count` row numbers of
/// x. |x * scale| < 2^50 for every element.
void add_rows_fixed_point(const float* x, int64_t dim, const int64_t* rows, int64_t count,
                          double scale, int64_t* sums);

/// The same for float64; `rests` accumulates the remainders times 2^32, rounded.
void add_rows_fixed_point(const double* x, int64_t dim, const int64_t* rows, int64_t count,
                          double scale, int64_t* sums, int64_t* rests);

}  // namespace torchvq::kernels
