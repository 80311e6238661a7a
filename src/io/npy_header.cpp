#include "io/npy_header.h"

#include <c10/util/Exception.h>

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "io/python_literal.h"

namespace torchvq::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "torchvq reads and writes little-endian files as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
// Arrays of plain numbers need some hundred bytes; the bound limits the memory that a
// corrupt length can cost.
constexpr size_t kLongestNpyHeader = 65535;

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};

constexpr std::array<DtypeName, 12> kNpyDtypes = {{
    {"f2", c10::ScalarType::Half},
    {"f4", c10::ScalarType::Float},
    {"f8", c10::ScalarType::Double},
    {"i1", c10::ScalarType::Char},
    {"i2", c10::ScalarType::Short},
    {"i4", c10::ScalarType::Int},
    {"i8", c10::ScalarType::Long},
    {"u1", c10::ScalarType::Byte},
    {"u2", c10::ScalarType::UInt16},
    {"u4", c10::ScalarType::UInt32},
    {"u8", c10::ScalarType::UInt64},
    {"b1", c10::ScalarType::Bool},
}};

void parse_descr(const std::string& path, const std::string& descr, ArrayLayout& layout) {
  const bool has_order = !descr.empty() && std::strchr("<>=|", descr[0]) != nullptr;
  const std::string_view name = std::string_view(descr).substr(has_order ? 1 : 0);
  for (const auto& known : kNpyDtypes) {
    if (name != known.name) continue;
    layout.dtype = known.dtype;
    layout.swapped = descr[0] == '>' && c10::elementSize(known.dtype) > 1;
    return;
  }
  TORCH_CHECK_TYPE(false, path,
                   ": expected an array of booleans, integers or float16, float32, float64 "
                   "numbers, but got dtype '",
                   descr, "'");
}

std::string read_dictionary(const InputFile& file, ArrayLayout& layout) {
  std::array<unsigned char, 12> start{};
  const auto got = file.read(0, start.data(), start.size());
  TORCH_CHECK_VALUE(
      got >= kMagic.size() && std::memcmp(start.data(), kMagic.data(), kMagic.size()) == 0,
      file.path(), ": expected a .npy file, which begins with \\x93NUMPY, but it begins otherwise");
  const int major = got > 7 ? start[6] : 0;
  const size_t prefix = major == 1 ? 10 : 12;
  TORCH_CHECK_VALUE(got >= 10 && (major > 3 || got >= prefix), file.path(),
                    ": expected a whole .npy header, but the file ends after ", file.size(),
                    " bytes");
  TORCH_CHECK_VALUE(major >= 1 && major <= 3 && start[7] == 0, file.path(),
                    ": expected .npy version 1.0, 2.0 or 3.0, but got ", major, ".",
                    static_cast<int>(start[7]));
  size_t length = start[8] | static_cast<size_t>(start[9]) << 8;
  if (major > 1)
    length |= static_cast<size_t>(start[10]) << 16 | static_cast<size_t>(start[11]) << 24;
  TORCH_CHECK_VALUE(length <= kLongestNpyHeader, file.path(),
                    ": expected a .npy header of at most ", kLongestNpyHeader,
                    " bytes, but it claims ", length);
  std::string text(length, '\0');
  TORCH_CHECK_VALUE(file.read(static_cast<int64_t>(prefix), text.data(), length) == length,
                    file.path(), ": expected a whole .npy header, but the file ends after ",
                    file.size(), " bytes");
  layout.offset = static_cast<int64_t>(prefix + length);
  return text;
}

void check_size(const InputFile& file, const ArrayLayout& layout) {
  const auto numel = layout.numel();
  TORCH_CHECK_VALUE(numel >= 0, file.path(),
                    ": expected a shape that fits in memory addresses, but got ",
                    shape_string(layout.shape));
  TORCH_CHECK_VALUE(file.size() - layout.offset >= layout.bytes(), file.path(), ": expected ",
                    layout.bytes(), " bytes of data for shape ", shape_string(layout.shape), " of ",
                    layout.dtype, ", but the file holds ", file.size() - layout.offset);
}

const char* descr_of(c10::ScalarType dtype) {
  for (const auto& known : kNpyDtypes) {
    if (known.dtype == dtype) return known.name.data();
  }
  TORCH_CHECK_TYPE(
      false, "save_npy: expected tensor to have a dtype that .npy files can hold, but got ", dtype);
}

}  // namespace

bool has_npy_magic(const InputFile& file) {
  std::array<char, kMagic.size()> start{};
  return file.read(0, start.data(), start.size()) == start.size() &&
         std::memcmp(start.data(), kMagic.data(), start.size()) == 0;
}

ArrayLayout read_npy_header(const InputFile& file) {
  ArrayLayout layout;
  const auto text = read_dictionary(file, layout);
  const auto header = parse_npy_dictionary(file.path(), text);
  parse_descr(file.path(), header.descr, layout);
  layout.shape = header.shape;
  layout.fortran_order = header.fortran_order;
  check_size(file, layout);
  return layout;
}

std::string make_npy_header(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  const auto* name = descr_of(dtype);
  TORCH_CHECK_VALUE(shape.size() <= kMostAxes, "save_npy: expected tensor to have at most ",
                    kMostAxes, " axes, but got ", shape.size());
  const auto order = c10::elementSize(dtype) == 1 ? "|" : "<";
  std::string text = c10::str("{'descr': '", order, name,
                              "', 'fortran_order': False, 'shape': ", shape_string(shape), ", }");
  constexpr size_t kPrefix = 10, kAlignment = 64;
  text.append(kAlignment - 1 - (kPrefix + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace torchvq::io
