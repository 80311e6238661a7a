#include "io/array_layout.h"

#include <algorithm>

namespace torchvq::io {

int64_t checked_numel(const std::vector<int64_t>& shape, int64_t element_size) {
  int64_t bytes = element_size;
  bool empty = false;
  for (const auto size : shape) {
    // The other axes of an empty array are multiplied too: rows and row sizes are computed from them.
    empty = empty || size == 0;
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return -1;
  }
  return empty ? 0 : bytes / element_size;
}

int64_t ArrayLayout::numel() const {
  return checked_numel(shape, static_cast<int64_t>(c10::elementSize(dtype)));
}

int64_t ArrayLayout::bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

std::string shape_string(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace torchvq::io
