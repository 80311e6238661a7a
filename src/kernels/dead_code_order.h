// The random order in which dead codes are replaced if not all of them are.
#pragma once

#include <cstdint>

#include "kernels/on_device.h"
#include "kernels/random.h"
#include "kernels/root.h"

namespace torchvq::kernels {

/// The stream of these numbers among those of RandomPurpose::kDeadCodeCandidates.
constexpr uint64_t kDeadCodeStream = 1;
/// The number of a code that is not dead: behind all others.
constexpr double kBehindDeadCodes = 1;

/// The number of a code, given its place among the codes of all heads; in (0, 1).
TORCHVQ_ON_DEVICE inline double dead_code_number(uint64_t key, int64_t place) {
  return uniform_from_bits(random_bits(key, static_cast<uint64_t>(place)), 53);
}

}  // namespace torchvq::kernels
