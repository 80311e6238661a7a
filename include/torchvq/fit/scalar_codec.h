// Quantizers of vectors without a codebook: a projection, scalar levels or signs, and a projection
// back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/fit/evaluation.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torchvq::fit {

/// The state of torchvq.FSQ(levels, dim, num_codebooks) and torchvq.LFQ(dim, codebook_size,
/// num_codebooks) in evaluation.
struct TORCHVQ_API ScalarCodec {
  std::string method = "fsq";   ///< "fsq": rounded features; "lfq": their signs
  std::vector<int64_t> levels;  ///< of the features of one codebook; all 2 for lfq
  int64_t num_codebooks = 1;    ///< codes of a vector
  int64_t dim = 0;              ///< features of a vector
  /// (F, D), (F,), (D, F), (D,) float32, F = num_codebooks * levels.size(). Undefined for fsq with
  /// F = D, which has no projections.
  at::Tensor in_weight, in_bias, out_weight, out_bias;

  int64_t features() const { return num_codebooks * static_cast<int64_t>(levels.size()); }
  int64_t codebook_size() const {
    int64_t size = 1;
    for (const auto level : levels) size *= level;
    return size;
  }
};

/// Throws c10::ValueError, in the name of `where`, unless the parts of a codec fit each other: a
/// known method, at least one codebook of levels of 2 to 65536 (of 2 for lfq) whose product is at
/// most 2^62, and maps of the shapes above, which are missing only if F = D.
TORCHVQ_API void check_scalar_codec(const char* where, const ScalarCodec& codec);

/// Codes of vectors: `in_weight x + in_bias`, rounded.
///
/// @param x  (N, D), floating point, finite.
/// @return   (N, num_codebooks), int64 in [0, codebook_size).
///
/// Precision  the projection is float64, so block size and order of sums only matter for a feature
///            within 1e-13 of the border between two levels; for the module, in float32, within
///            1e-6.
/// Throws     c10::ValueError for another dimension, and as check_scalar_codec().
TORCHVQ_API at::Tensor encode_scalar(const at::Tensor& x, const ScalarCodec& codec);

/// Vectors of codes, `out_weight code + out_bias`.
///
/// @param codes  (N, num_codebooks), int64 in [-1, codebook_size); the features of a -1 are zeros.
/// @return       (N, D), float32; zeros where all codes are -1, as of a masked token.
///
/// Throws     c10::IndexError for a code out of range, c10::ValueError for another shape, and as
///            check_scalar_codec().
TORCHVQ_API at::Tensor decode_scalar(const at::Tensor& codes, const ScalarCodec& codec);

/// The largest codebook whose codes are counted.
constexpr int64_t kMostCounted = int64_t{1} << 24;

/// Encodes and decodes all vectors, and adds up counts and errors, over all processes of the shard.
TORCHVQ_API Evaluation evaluate_scalar(const functional::VectorBlocks& vectors,
                                       const ScalarCodec& codec,
                                       const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
