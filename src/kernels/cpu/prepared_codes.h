// Codes in 8 bits, for screening a few rows at a quarter of the memory traffic of
// float32 (docs/design/search.md, "Prepared codes"): made once, then searched as long as
// the codes do not change.
//
// Layout, in bytes, the same for every instruction set: a PreparedHead; the centre, in floats,
// padded to whole panels; panels of 16 codes. A panel is a PreparedPanel followed by a block of 64
// bytes for every four dimensions: byte 4 j + i of block q is 128 + the integer of code j in
// dimension 4 q + i. Padding is zeros, and codes with an infinite offset.
#pragma once

#include <stdint.h>

namespace torchvq::kernels {

constexpr int64_t kPreparedCodes = 16;  // codes per panel

struct PreparedHead {
  int32_t usable;  ///< 0: screening cannot bound these codes
  int32_t unused[15];
};

/// Upper bound of the score of row y (minus the centre): <y, integers> * scale + |y| * slope -
/// offset. The error of the score is |y| * slope + intercept to either side.
struct PreparedPanel {
  float scales[kPreparedCodes], slopes[kPreparedCodes], offsets[kPreparedCodes];
  float intercepts[kPreparedCodes];
};

inline int64_t prepared_center_floats(int64_t dim) {
  return (dim + kPreparedCodes - 1) / kPreparedCodes * kPreparedCodes;
}

inline int64_t prepared_panels(int64_t size) {
  return (size + kPreparedCodes - 1) / kPreparedCodes;
}

/// Number of blocks of four dimensions.
inline int64_t prepared_blocks(int64_t dim) { return (dim + 3) / 4; }

inline int64_t prepared_panel_bytes(int64_t dim) {
  return static_cast<int64_t>(sizeof(PreparedPanel)) + prepared_blocks(dim) * 4 * kPreparedCodes;
}

/// Size for `size` codes; 0 where screening them does not pay.
int64_t prepared_bytes(int64_t size, int64_t dim);

/// Writes prepared_bytes(size, dim) bytes; the number must not be 0.
void prepare_codes(const float* codes, int64_t size, int64_t dim, uint8_t* to);

/// A view of a prepared codebook.
struct PreparedCodes {
  const uint8_t* bytes = nullptr;  ///< null: none
  int64_t size = 0, dim = 0;

  bool usable() const {
    return bytes != nullptr && reinterpret_cast<const PreparedHead*>(bytes)->usable != 0;
  }
  const float* center() const {
    return reinterpret_cast<const float*>(bytes + sizeof(PreparedHead));
  }
  const uint8_t* panel(int64_t index) const {
    return bytes + sizeof(PreparedHead) +
           static_cast<int64_t>(sizeof(float)) * prepared_center_floats(dim) +
           index * prepared_panel_bytes(dim);
  }
  const PreparedPanel& facts(int64_t index) const {
    return *reinterpret_cast<const PreparedPanel*>(panel(index));
  }
};

}  // namespace torchvq::kernels
