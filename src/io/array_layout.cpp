#include "io/array_layout.h"

#include <limits>

namespace torchvq::io {

int64_t checked_numel(const std::vector<int64_t>& shape, int64_t element_size) {
  // An axis of size 0 makes the array empty, however large the others are.
  for (const auto size : shape) {
    if (size == 0) return 0;
  }
  int64_t bytes = element_size;
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes / element_size;
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
