// The arithmetic of residual levels between two projections (docs/design/residual.md). Every
// instruction set gives the same bits: a matrix-vector product adds its terms into 16 partial
// sums, by index modulo 16, and these pairwise, first those 8 apart, then 4, 2 and 1; each
// operation is rounded to T.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

inline constexpr int64_t kPartialSums = 16;

/// Length of a row of a tile, padded with zeros.
static inline int64_t padded_features(int64_t features) {
  return (features + kPartialSums - 1) / kPartialSums * kPartialSums;
}

/// Distance between rows of a tile. A power of two would map all rows to the same cache sets.
static inline int64_t row_stride(int64_t features) {
  return padded_features(features) + kPartialSums;
}

/// Distance between codes of a tile, which are padded with zeros.
static inline int64_t padded_dim(int64_t dim) { return dim <= 8 ? 8 : padded_features(dim); }

struct ProjectedShape {
  int64_t features;  ///< of the rows, which lie row_stride(features) apart
  int64_t dim;       ///< of latents and codes
};

template <typename T>
struct ProjectedLevelKernel {
  /// latents (count, dim) = weight (dim, features) times each row, plus bias.
  void (*project_in)(const ProjectedShape& shape, const T* rows, int64_t count, const T* weight,
                     const T* bias, T* latents);

  /// Divides vectors (count, dim) by their norms, or by 1e-12 if a norm is smaller. Squares are
  /// added in order of index.
  void (*unit_vectors)(const T* vectors, int64_t count, int64_t dim, T* units);

  /// Packs weight (features, dim) and bias for take_part: packed_size(shape) numbers.
  void (*pack_out)(const ProjectedShape& shape, const T* weight, const T* bias, T* packed);
  int64_t (*packed_size)(const ProjectedShape& shape);

  /// With part = weight times each code, plus bias: totals += part, rows -= part. Codes lie
  /// padded_dim(dim) apart.
  void (*take_part)(const ProjectedShape& shape, const T* packed, const T* codes, int64_t count,
                    T* rows, T* totals);
  /// The same with an unpacked weight (features, 8), for few rows. Null where only
  /// the packed version exists.
  void (*take_part_unpacked)(const ProjectedShape& shape, const T* weight, const T* bias,
                             const T* codes, int64_t count, T* rows, T* totals);

  /// inverse[k] = 1 / |code k| of a codebook (size, 8), for screening. Returns false, with the
  /// output unspecified, if a norm is far from 1. Null where take_part_unpacked is.
  bool (*inverse_norms)(const T* codebook, int64_t size, T* inverse);
  /// scores[k] = <row, code k> * inverse[k], for screening.
  void (*angles)(const T* row, const T* codebook, const T* inverse, int64_t size, T* scores);

  /// Load: rows[r][c] = from[r + c * stride], padded, which transposes a clip; store: the inverse.
  void (*load_columns)(const ProjectedShape& shape, const T* from, int64_t stride, int64_t count,
                       T* rows);
  void (*store_columns)(const ProjectedShape& shape, const T* rows, int64_t count, int64_t stride,
                        T* to);
};

struct ProjectedLevelKernels {
  ProjectedLevelKernel<float> narrow;
  ProjectedLevelKernel<double> wide;
};

ProjectedLevelKernels projected_level_default();
ProjectedLevelKernels projected_level_avx2();
ProjectedLevelKernels projected_level_avx512();

template <typename T>
ProjectedLevelKernel<T> projected_level(CpuLevel level) {
  const auto kernels = TORCHVQ_AT_LEVEL(level, projected_level)();
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.narrow;
  } else {
    return kernels.wide;
  }
}

}  // namespace torchvq::kernels
