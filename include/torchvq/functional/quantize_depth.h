// Quantizer dropout: the number of levels of a residual stack that a training forward uses.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The range of depths.
struct DepthRule {
  int64_t levels;            ///< of the stack, at least 1
  int64_t cutoff_index = 0;  ///< the last level that is never dropped, in [0, levels)
  int64_t multiple_of = 1;   ///< depths are rounded up to a multiple of this, but not above levels
};

/// The depth for a seed: uniform in (cutoff_index, levels], then rounded up. The depth
/// of vector-quantize-pytorch for the same seed: the draw is that of Python's
/// `random.Random(seed).randrange(cutoff_index, levels)`, a Mersenne Twister seeded by the words of
/// |seed| (Matsumoto and Nishimura 1998, with their initialisation by array).
TORCHVQ_API int64_t seeded_depth(int64_t seed, const DepthRule& rule);

/// The same distribution from the counter-based generator `rng` (2,) of seed and step, so that
/// ranks agree without a message. The host reads it, and on a GPU waits for it.
TORCHVQ_API int64_t drawn_depth(const at::Tensor& rng, const DepthRule& rule);

}  // namespace torchvq::functional
