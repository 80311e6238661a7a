// The use of codebooks: the result of stats() of the quantizers.
#pragma once

#include <cstdint>

namespace torchvq {

/// The use of one codebook in the last training forward; see VectorQuantizeImpl::stats.
struct CodebookStats {
  double usage = 0;       ///< fraction of the codes that at least one token chose, in [0, 1]
  double perplexity = 0;  ///< 2 ^ entropy_bits: as many equally likely codes would be as varied; 0
                          ///< without tokens
  int64_t dead = 0;       ///< codes whose moving average is below the threshold of replacement;
                          ///< without replacement below 0.01 tokens
  int64_t replaced = 0;   ///< codes that this step replaced
  double entropy_bits = 0;  ///< entropy of the codes' frequencies in bits, mean over the heads of
                            ///< separate codebooks
  int64_t tokens = 0;       ///< tokens that chose a code, of all heads
};

}  // namespace torchvq
