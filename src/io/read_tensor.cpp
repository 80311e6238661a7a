#include "io/read_tensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace torchvq::io {
namespace {

template <typename Word, typename Swap>
void swap_words(char* data, int64_t count, Swap swap) {
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    word = swap(word);
    std::memcpy(data + i * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
  }
}

void swap_bytes(char* data, int64_t count, size_t size) {
  if (size == 2) swap_words<uint16_t>(data, count, [](uint16_t w) { return __builtin_bswap16(w); });
  if (size == 4) swap_words<uint32_t>(data, count, [](uint32_t w) { return __builtin_bswap32(w); });
  if (size == 8) swap_words<uint64_t>(data, count, [](uint64_t w) { return __builtin_bswap64(w); });
}

// In C++, a bool with a byte other than 0 and 1 is undefined behaviour; NumPy reads it as true.
void normalise_bools(char* data, int64_t count) {
  std::transform(data, data + count, data, [](char c) { return static_cast<char>(c != 0); });
}

}  // namespace

at::Tensor read_elements(const InputFile& file, const ArrayLayout& layout, int64_t first,
                         int64_t count) {
  const auto options = at::TensorOptions(layout.dtype);
  if (count == 0) return at::empty({0}, options);
  const auto element = c10::elementSize(layout.dtype);
  auto result = at::empty({count}, options);
  auto* data = static_cast<char*>(result.mutable_data_ptr());
  file.read_all(layout.offset + first * static_cast<int64_t>(element), data,
                static_cast<size_t>(count) * element);
  if (layout.swapped) swap_bytes(data, count, element);
  if (layout.dtype == at::kBool) normalise_bools(data, count);
  return result;
}

at::Tensor read_array(const InputFile& file, const ArrayLayout& layout) {
  const auto flat = read_elements(file, layout, 0, layout.numel());
  if (!layout.fortran_order) return flat.view(layout.shape);
  auto reversed = layout.shape;
  std::reverse(reversed.begin(), reversed.end());
  std::vector<int64_t> axes(reversed.size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(axes.size() - 1 - i);
  return flat.view(reversed).permute(axes);
}

}  // namespace torchvq::io
