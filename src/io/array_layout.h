// The place of an array in a file, for any format.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::io {

/// The most axes of an array that a reader accepts, as in numpy.
constexpr size_t kMostAxes = 64;

struct ArrayLayout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  bool fortran_order = false;
  bool swapped = false;  // big-endian
  int64_t offset = 0;    // of the first element, in bytes from the start of the file

  int64_t numel() const;
  int64_t bytes() const;
};

/// The number of elements, or -1 if elements or bytes do not fit in 63 bits.
int64_t checked_numel(const std::vector<int64_t>& shape, int64_t element_size);

/// "(3, 4)", as Python writes it.
std::string shape_string(const std::vector<int64_t>& shape);

}  // namespace torchvq::io
