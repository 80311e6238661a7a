// Draws a code for one token from K scores. Compute-bound: a hash, an exponential and a logarithm
// per code; codes whose probability is 0 in float64 are skipped.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/random.h"

namespace torchvq::kernels {

/// Largest score, or NaN if one of them is NaN.
inline double best_score(const double* scores, int64_t size) {
  double best = scores[0];
  for (int64_t k = 1; k < size; ++k) {
    if (scores[k] > best || std::isnan(scores[k])) best = scores[k];
    if (std::isnan(best)) return best;
  }
  return best;
}

/// `position` numbers scores[0] among all draws; the temperature is above 0.
inline int64_t sample_code(const double* scores, int64_t size, double temperature, uint64_t key,
                           uint64_t position) {
  const double best = best_score(scores, size);
  if (!std::isfinite(best)) return 0;
  int64_t chosen = 0;
  double most = -1.0;
  for (int64_t k = 0; k < size; ++k) {
    const double lag = scores[k] - best;
    double chance = std::exp(lag / temperature);
    if (chance > 0.0) {
      const auto bits = random_bits(key, position + static_cast<uint64_t>(k));
      chance /= -log_of_uniform(uniform_from_bits(bits, 53));
    }
    if (chance > most) {
      most = chance;
      chosen = k;
    }
  }
  return chosen;
}

}  // namespace torchvq::kernels
