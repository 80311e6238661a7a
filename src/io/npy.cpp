#include <torchvq/io/npy.h>

#include <utility>

#include "detail/checks.h"
#include "io/input_file.h"
#include "io/npy_header.h"
#include "io/read_tensor.h"

namespace torchvq::io {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  const auto numel = checked_numel(shape, 8);
  TORCH_CHECK_VALUE(
      numel >= 0,
      "NpyWriter: expected shape to have sizes that are not negative and fit in memory "
      "addresses, but got ",
      shape_string(shape));
  return numel;
}

}  // namespace

at::Tensor load_npy(const std::string& path) {
  const InputFile file(path);
  return read_array(file, read_npy_header(file));
}

NpyHeader load_npy_header(const std::string& path) {
  const auto layout = read_npy_header(InputFile(path));
  return {layout.dtype, layout.shape, layout.fortran_order};
}

void save_npy(const std::string& path, const at::Tensor& tensor) {
  detail::check_defined("save_npy", "tensor", tensor);
  detail::check_strided("save_npy", "tensor", tensor);
  NpyWriter writer(path, tensor.scalar_type(), tensor.sizes().vec());
  writer.append(tensor);
  writer.finish();
}

NpyWriter::NpyWriter(const std::string& path, at::ScalarType dtype, std::vector<int64_t> shape)
    : file_(path), dtype_(dtype), expected_(product(shape)) {
  const auto header = make_npy_header(dtype, shape);
  file_.reserve(header.size() + static_cast<size_t>(expected_) * c10::elementSize(dtype));
  file_.write(header.data(), header.size());
}

void NpyWriter::append(const at::Tensor& piece) {
  TORCH_CHECK_TYPE(piece.scalar_type() == dtype_, "NpyWriter: expected piece to be ", dtype_,
                   ", but got ", piece.scalar_type());
  TORCH_CHECK_VALUE(piece.numel() <= expected_ - appended_, "NpyWriter: expected at most ",
                    expected_ - appended_, " more elements, but got ", piece.numel());
  // A view may hold the negative of its values, and say so in a bit that `contiguous` keeps.
  const auto data = piece.cpu().resolve_neg().contiguous();
  file_.write(data.const_data_ptr(), data.nbytes());
  appended_ += data.numel();
}

void NpyWriter::finish() {
  TORCH_CHECK_VALUE(appended_ == expected_, "NpyWriter: expected ", expected_,
                    " elements, but got ", appended_);
  file_.commit();
}

}  // namespace torchvq::io
