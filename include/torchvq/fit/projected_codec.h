// Codebooks with linear maps around them, as in audio tokenizers: around each level (DAC), or
// around each of several stacks that quantize the same vector (Mimi).
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

/// `weight x + bias`; without a weight, the identity.
struct Projection {
  at::Tensor weight;  ///< (out, in), float32, or undefined
  at::Tensor bias;    ///< (out,), float32, or undefined
};

struct ProjectedLevel {
  Projection in;
  at::Tensor codebook;  ///< (K, d), float32
  Projection out;
};

/// Each level quantizes the residual of the levels before, from the output of `in`.
struct ProjectedStack {
  Projection in;
  std::vector<ProjectedLevel> levels;
  Projection out;
};

/// Stacks that quantize the same vector; their outputs are added up.
struct TORCHVQ_API ProjectedCodec {
  std::vector<ProjectedStack> stacks;
  /// "cosine": codes are compared as unit vectors, but decoded unscaled.
  std::string metric = "euclidean";
  int64_t dim = 0;  ///< features of a vector

  /// Number of codes of a vector: the levels of stack 0, then those of stack 1, ...
  int64_t columns() const;
  const at::Tensor& codebook(int64_t column) const;
};

/// Throws c10::ValueError, in the name of `where`, unless the parts of a codec fit each other: a
/// known metric, at least one stack, stacks of at least one level, codebooks of at least one code,
/// and maps whose sizes lead from `dim` to each codebook and back.
TORCHVQ_API void check_projected_codec(const char* where, const ProjectedCodec& codec);

/// Codes of vectors: the nearest one of every level.
///
/// @param x  (N, dim), floating point, finite.
/// @return   (N, columns), int64.
///
/// Ties       the lowest index.
/// Precision  float64 throughout. A model that projects in float32 may choose another code if the
///            distances of two codes differ by less than its rounding.
/// Throws     c10::ValueError for another shape, and as check_projected_codec().
TORCHVQ_API at::Tensor encode_projected(const at::Tensor& x, const ProjectedCodec& codec);

/// Vectors of codes.
///
/// @param codes  (N, columns), int64 in [-1, K); -1 adds nothing, and a stack with only -1 adds
///               nothing.
/// @return       (N, dim), float32, computed in float64.
///
/// Throws     c10::IndexError for a code out of range, c10::ValueError for another shape, and as
///            check_projected_codec().
TORCHVQ_API at::Tensor decode_projected(const at::Tensor& codes, const ProjectedCodec& codec);

/// Encodes and decodes all vectors, and adds up counts and errors, over all processes of the shard.
TORCHVQ_API Evaluation
evaluate_projected(const functional::VectorBlocks& vectors, const ProjectedCodec& codec,
                   const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
