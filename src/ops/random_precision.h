// Number of random bits in a uniform number of each dtype: the length of its significand.
#pragma once

#include <c10/core/ScalarType.h>

namespace torchvq::detail {

inline int uniform_precision(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 53;
    case at::kHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      return 24;
  }
}

}  // namespace torchvq::detail
