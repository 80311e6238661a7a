// VectorSource and IndexSource: checks that an ArraySource contains vectors or indices.
#include <torchvq/io/array_source.h>

#include <algorithm>
#include <bit>

#include "io/array_layout.h"

namespace torchvq::io {
namespace {

// NaN and infinity are the numbers whose exponent bits are all set; the
// test on integers vectorises.
template <typename Float, typename Bits>
int64_t first_non_finite(const at::Tensor& block, Bits exponent) {
  const auto* data = block.const_data_ptr<Float>();
  const int64_t dim = block.size(1);
  for (int64_t row = 0; row < block.size(0); ++row) {
    bool found = false;
    for (int64_t d = 0; d < dim; ++d) {
      found |= (std::bit_cast<Bits>(data[row * dim + d]) & exponent) == exponent;
    }
    if (found) return row;
  }
  return -1;
}

void check_finite(const std::string& path, const at::Tensor& block, int64_t first) {
  const bool wide = block.scalar_type() == at::kDouble;
  const auto row = wide ? first_non_finite<double>(block, uint64_t{0x7ff} << 52)
                        : first_non_finite<float>(block, uint32_t{0xff} << 23);
  TORCH_CHECK_VALUE(row < 0, path, ": expected finite ", wide ? "float64" : "float32",
                    " values, but row ", first + row, " holds NaN or infinity");
}

// int64 holds all indices except those of uint64 from 2^63 on, which become negative.
void check_fits(const std::string& path, const at::Tensor& indices, int64_t first) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const auto* end = index + indices.numel();
  const auto* large = std::find_if(index, end, [](int64_t value) { return value < 0; });
  TORCH_CHECK_VALUE(large == end, path, ": expected indices below 2^63, but got ",
                    static_cast<uint64_t>(*large), " at position ", first + (large - index));
}

// A block as indices; `first` is the number of elements before it.
at::Tensor indices_of(const ArraySource& array, const at::Tensor& block, int64_t first) {
  auto indices = block.to(at::kLong).contiguous();
  if (array.dtype() == at::kUInt64) check_fits(array.path(), indices, first);
  return indices;
}

}  // namespace

VectorSource::VectorSource(const std::string& path, const std::string& name) : array_(path, name) {
  TORCH_CHECK_TYPE(at::isFloatingType(array_.dtype()), path,
                   ": expected floating point vectors, but got ",
                   c10::getDtypeNames(array_.dtype()).first);
  TORCH_CHECK_VALUE(array_.shape().size() >= 2, path,
                    ": expected vectors of shape (N, dim) or (..., N, dim), but got shape ",
                    shape_string(array_.shape()));
  TORCH_CHECK_VALUE(dim() > 0, path, ": expected vectors of at least 1 dimension, but got shape ",
                    shape_string(array_.shape()));
}

at::Tensor VectorSource::read(int64_t first, int64_t count, at::ScalarType dtype) const {
  const auto block = array_.read(first, count).to(dtype).contiguous();
  check_finite(array_.path(), block, first);
  return block;
}

IndexSource::IndexSource(const std::string& path, const std::string& name) : array_(path, name) {
  TORCH_CHECK_TYPE(at::isIntegralType(array_.dtype(), /*includeBool=*/false), path,
                   ": expected whole-number indices, but got ", array_.dtype());
  TORCH_CHECK_VALUE(!array_.shape().empty(), path,
                    ": expected indices of shape (N,) or more axes, but got shape ()");
}

at::Tensor IndexSource::read(int64_t first, int64_t count) const {
  return indices_of(array_, array_.read(first, count), first * row_length());
}

at::Tensor IndexSource::read_flat(int64_t first, int64_t count) const {
  return indices_of(array_, array_.read_flat(first, count), first);
}

}  // namespace torchvq::io
