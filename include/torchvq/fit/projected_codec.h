// Codebooks behind linear maps, as tokenizers of sound have them: a map around each level (DAC), or
// around each of several stacks that read the same vector (Mimi).
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/functional/reconstruction_error.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torchvq::fit {

/// `weight x + bias`; without a weight, x as it is.
struct Projection {
  at::Tensor weight;  // (out, in), float32, or undefined
  at::Tensor bias;    // (out,), float32, or undefined
};

struct ProjectedLevel {
  Projection in;
  at::Tensor codebook;  // (K, d), float32
  Projection out;
};

/// Each level describes what the levels before have left of the vector behind `in`.
struct ProjectedStack {
  Projection in;
  std::vector<ProjectedLevel> levels;
  Projection out;
};

/// Stacks that describe the same vector; what they say is added up.
struct TORCHVQ_API ProjectedCodec {
  std::vector<ProjectedStack> stacks;
  std::string metric =
      "euclidean";  // "cosine": codes are chosen by angle, and looked up as they are
  int64_t dim = 0;  // features of a vector

  /// Codes of a vector: the levels of stack 0, then those of stack 1, ...
  int64_t columns() const;
  const at::Tensor& codebook(int64_t column) const;
};

/// Codes of vectors: the nearest one of every level.
///
/// @param x  (N, dim), floating point, finite.
/// @return   (N, columns), int64.
///
/// Ties       the lowest index.
/// Precision  float64 throughout. A model that projects in float32 may choose otherwise where two
///            codes are as near as its rounding.
/// Throws     c10::ValueError for another shape.
TORCHVQ_API at::Tensor encode_projected(const at::Tensor& x, const ProjectedCodec& codec);

/// Vectors of codes.
///
/// @param codes  (N, columns), int64 in [-1, K); -1 adds nothing, and a stack of nothing else nothing.
/// @return       (N, dim), float32, computed in float64.
///
/// Throws     c10::IndexError for a code out of range, c10::ValueError for another shape.
TORCHVQ_API at::Tensor decode_projected(const at::Tensor& codes, const ProjectedCodec& codec);

struct EvaluateProjectedOutput {
  std::vector<at::Tensor> counts;  // per column (K,), int64: vectors per code
  functional::ReconstructionError error;
};

/// Encodes and decodes all vectors, and adds up counts and errors.
TORCHVQ_API EvaluateProjectedOutput
evaluate_projected(const functional::VectorBlocks& vectors, const ProjectedCodec& codec,
                   const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
