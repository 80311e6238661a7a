// The purposes of random draws. In one step, draws for different purposes are independent.
#pragma once

#include <cstdint>

namespace torchvq {

/// Resumed checkpoints depend on these values: never renumber, only append.
enum class RandomPurpose : int64_t {
  kInitialCodebook = 1,     ///< random codebooks at construction
  kKmeansSeeding = 2,       ///< which tokens kmeans() starts from
  kDeadCodeCandidates = 3,  ///< which tokens replace dead codes
  kCodeSampling = 4,        ///< stochastic choice of codes (Gumbel noise), per token
  kQuantizeDropout = 5,     ///< depth of a residual stack in this step
  kNoise = 6,               ///< additive noise (FSQ, dropout of codes), per token
  kOrthogonalSubset = 7,    ///< codes that enter the orthogonal loss
  kDirectionalReparam = 8,  ///< noise of the directional reparametrisation, per token
  kRandomProjection = 9,    ///< projections of the random-projection quantizer
  kTokenSubset = 10,        ///< tokens that enter the entropy of lookup-free quantization
  kEvolution = 11,          ///< bits, flips and tournaments of EvoLFQ
  kKmeansEmptyCodes = 12,   ///< which tokens the codes without tokens move to in kmeans()
};

}  // namespace torchvq
