// Fits the projections of a quantizer without a codebook to vectors that need not fit in memory.
#pragma once

#include <torchvq/export.h>
#include <torchvq/fit/scalar_codec.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torchvq::fit {

struct FitScalarOptions {
  std::string method = "fsq";   ///< or "lfq"
  std::vector<int64_t> levels;  ///< as ScalarCodec
  int64_t num_codebooks = 1;
  int64_t seed = 0;  ///< for the sample, and for lfq for the first rotation
};

struct FitScalarOutput {
  ScalarCodec codec;
  Evaluation evaluation;  ///< on all vectors
};

/// Fits the linear maps around a scalar quantizer in closed form, on a sample of up to 65536
/// vectors spread over the rows.
///
/// In           the F directions of largest variance. fsq: all scaled to the same variance, which
///              minimises the error of the sample; the widest directions get the most levels. lfq:
///              rotated so that signs are closest to the values (iterative quantization, Gong and
///              Lazebnik 2011, "Iterative Quantization: A Procrustean Approach to Learning Binary
///              Codes").
/// Out          the least-squares map from codes to vectors.
/// fsq with F = D has no projection, like the module, and nothing is fitted.
///
/// @param progress  called with (pass, rows): pass 0 draws the sample, pass 1 measures the error.
/// Memory       O(block_rows * D + 65536 * D + D * D).
/// Determinism  the same codec for any block size, split into shards and number of threads. The
///              linear algebra library decides the rounding, so bits may depend on the machine.
/// Throws       c10::ValueError for an unknown method, no vectors, F > D, or vectors so large or
///              small that float32 cannot hold the maps or what they decode to.
TORCHVQ_API FitScalarOutput
fit_scalar_codec(const functional::VectorBlocks& vectors, const FitScalarOptions& options,
                 const std::function<void(int64_t pass, int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
