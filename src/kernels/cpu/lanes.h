// Sums in a fixed order that a compiler can still vectorise: eight partial sums, added pairwise.
// Torch-free. The result depends only on the values and their number.
#pragma once

#include <cstdint>

namespace torchvq::kernels {

inline constexpr int64_t kLanes = 8;

struct LaneSum {
  double lane[kLanes] = {};

  double total() const {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
};

/// Calls term(i, lane) for i = 0 ... size-1, whole groups of lanes first.
template <typename Term>
inline void for_each_lane(int64_t size, Term&& term) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) term(i + l, l);
  }
  for (int64_t l = 0; i + l < size; ++l) term(i + l, l);
}

}  // namespace torchvq::kernels
