#include <ATen/ops/empty.h>
#include <torchvq/io/array_source.h>
#include <torchvq/io/safetensors.h>

#include <algorithm>
#include <utility>

#include "io/array_layout.h"
#include "io/input_file.h"
#include "io/npy_header.h"
#include "io/read_tensor.h"
#include "io/safetensors_header.h"

namespace torchvq::io {
namespace {

std::string only_name(const std::string& path,
                      const std::map<std::string, SafetensorsEntry>& entries) {
  TORCH_CHECK_VALUE(entries.size() == 1, path,
                    ": expected one tensor, or the name of the one to read (--key), but ",
                    "the file holds ", entries.size(), " tensors");
  return entries.begin()->first;
}

ArrayLayout safetensors_layout(const std::string& path, const std::string& name) {
  const SafetensorsFile file(path);
  const auto& entry = file.entry(name.empty() ? only_name(path, file.entries()) : name);
  return {entry.dtype, entry.shape, false, false, entry.begin};
}

FileFormat format_of(const InputFile& file) {
  TORCH_CHECK_VALUE(file.size() > 0, file.path(),
                    ": expected a .npy or .safetensors file, but it is empty");
  if (has_npy_magic(file)) return FileFormat::kNpy;
  TORCH_CHECK_VALUE(looks_like_safetensors(file), file.path(),
                    ": expected a .npy or .safetensors file, but its first bytes are neither's");
  return FileFormat::kSafetensors;
}

ArrayLayout find_array(const InputFile& file, const std::string& name) {
  if (format_of(file) == FileFormat::kSafetensors) return safetensors_layout(file.path(), name);
  TORCH_CHECK_VALUE(name.empty(), file.path(),
                    ": expected no tensor name (--key), as a .npy file holds one array");
  return read_npy_header(file);
}

// The order matters only if at least two axes are longer than 1.
bool is_effectively_1d(at::IntArrayRef shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t size) { return size != 1; }) <= 1;
}

}  // namespace

FileFormat file_format(const std::string& path) { return format_of(InputFile(path)); }

ArraySource::ArraySource(const std::string& path, const std::string& name)
    : file_(std::make_unique<InputFile>(path)),
      layout_(std::make_unique<ArrayLayout>(find_array(*file_, name))) {
  auto& layout = *layout_;
  const auto& shape = layout.shape;
  if (is_effectively_1d(shape) || layout.numel() == 0) layout.fortran_order = false;
  // numpy writes Fortran order for one clip's features transposed to the last axis.
  TORCH_CHECK_VALUE(
      !layout.fortran_order || is_effectively_1d(at::IntArrayRef(shape).slice(0, shape.size() - 1)),
      path,
      ": expected an array in C order, or in Fortran order with one axis longer than 1 "
      "before the last, but got Fortran order and shape ",
      shape_string(shape), "; numpy.ascontiguousarray puts it in C order");
  if (shape.size() > 1) row_length_ = shape.back();
  const auto leading = shape.size() > 1 ? shape.size() - 1 : shape.size();
  rows_ = checked_numel({shape.begin(), shape.begin() + static_cast<int64_t>(leading)}, 1);
  TORCH_CHECK_VALUE(rows_ >= 0, path, ": expected a shape that fits in memory addresses, but got ",
                    shape_string(shape));
}

ArraySource::~ArraySource() = default;
ArraySource::ArraySource(ArraySource&&) noexcept = default;

const std::string& ArraySource::path() const { return file_->path(); }
at::ScalarType ArraySource::dtype() const { return layout_->dtype; }
const std::vector<int64_t>& ArraySource::shape() const { return layout_->shape; }
bool ArraySource::fortran_order() const { return layout_->fortran_order; }

at::Tensor ArraySource::read(int64_t first, int64_t count) const {
  TORCH_CHECK_INDEX(first >= 0 && count >= 0 && first <= rows_ - count, path(),
                    ": expected rows within [0, ", rows_, "), but got [", first, ", ",
                    first + count, ")");
  if (layout_->fortran_order) return read_columns(first, count);
  return read_elements(*file_, *layout_, first * row_length_, count * row_length_)
      .view({count, row_length_});
}

at::Tensor ArraySource::read_flat(int64_t first, int64_t count) const {
  const auto numel = rows_ * row_length_;
  TORCH_CHECK_INDEX(first >= 0 && count >= 0 && first <= numel - count, path(),
                    ": expected elements within [0, ", numel, "), but got [", first, ", ",
                    first + count, ")");
  TORCH_CHECK_VALUE(!layout_->fortran_order, path(),
                    ": expected an array in C order, but got Fortran order");
  return read_elements(*file_, *layout_, first, count);
}

at::Tensor ArraySource::read_columns(int64_t first, int64_t count) const {
  auto columns = at::empty({row_length_, count}, at::TensorOptions(layout_->dtype));
  for (int64_t column = 0; column < row_length_; ++column) {
    columns.select(0, column).copy_(read_elements(*file_, *layout_, column * rows_ + first, count));
  }
  return columns.t().contiguous();
}

}  // namespace torchvq::io
