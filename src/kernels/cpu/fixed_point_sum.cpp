#include "kernels/cpu/fixed_point_sum.h"

#include <bit>

namespace torchvq::kernels {
namespace {

constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
constexpr uint64_t kMagicBits = std::bit_cast<uint64_t>(kMagic);

inline uint64_t rounded_bits(double scaled) { return std::bit_cast<uint64_t>(scaled + kMagic); }

/// Four rows at a time, so that the running sums are loaded and stored once per four rows.
void add_four_rows(const float* a, const float* b, const float* c, const float* d, int64_t dim,
                   double scale, uint64_t* __restrict sums) {
  for (int64_t i = 0; i < dim; ++i) {
    const uint64_t ab = rounded_bits(a[i] * scale) + rounded_bits(b[i] * scale);
    const uint64_t cd = rounded_bits(c[i] * scale) + rounded_bits(d[i] * scale);
    sums[i] += ab + cd - 4 * kMagicBits;
  }
}

void add_row(const float* a, int64_t dim, double scale, uint64_t* __restrict sums) {
  for (int64_t i = 0; i < dim; ++i) sums[i] += rounded_bits(a[i] * scale) - kMagicBits;
}

}  // namespace

void add_rows_fixed_point(const float* x, int64_t dim, const int64_t* rows, int64_t count,
                          double scale, int64_t* sums) {
  auto* to = reinterpret_cast<uint64_t*>(sums);  // wraps around without undefined behaviour
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    add_four_rows(x + rows[r] * dim, x + rows[r + 1] * dim, x + rows[r + 2] * dim,
                  x + rows[r + 3] * dim, dim, scale, to);
  }
  for (; r < count; ++r) add_row(x + rows[r] * dim, dim, scale, to);
}

void add_rows_fixed_point(const double* x, int64_t dim, const int64_t* rows, int64_t count,
                          double scale, int64_t* sums, int64_t* rests) {
  auto* __restrict whole_sums = reinterpret_cast<uint64_t*>(sums);
  auto* __restrict rest_sums = reinterpret_cast<uint64_t*>(rests);
  for (int64_t r = 0; r < count; ++r) {
    const double* row = x + rows[r] * dim;
    for (int64_t d = 0; d < dim; ++d) {
      const double scaled = row[d] * scale;
      const double shifted = scaled + kMagic;
      const double rest = (scaled - (shifted - kMagic)) * 4294967296.0;
      whole_sums[d] += std::bit_cast<uint64_t>(shifted) - kMagicBits;
      rest_sums[d] += rounded_bits(rest) - kMagicBits;
    }
  }
}

}  // namespace torchvq::kernels
