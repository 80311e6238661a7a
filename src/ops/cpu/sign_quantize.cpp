#include "ops/sign_quantize.h"

#include <atomic>
#include <limits>
#include <tuple>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

constexpr int64_t kSignsPerTask = 16384;

template <typename T>
int64_t quantize_row(const T* x, int64_t dim, T scale, T* codes) {
  int64_t index = 0;
  T sum = 0;  // x - x is 0 only for finite numbers
  for (int64_t d = 0; d < dim; ++d) {
    const bool set = x[d] > 0;
    index = (index << 1) | static_cast<int64_t>(set);
    codes[d] = set ? scale : -scale;
    sum += x[d] - x[d];
  }
  if (sum == 0) return index;
  for (int64_t d = 0; d < dim; ++d) codes[d] = std::numeric_limits<T>::quiet_NaN();
  return 0;
}

std::tuple<at::Tensor, at::Tensor> sign_quantize(const at::Tensor& x_, double scale) {
  detail::check_sign_quantize(x_, scale);
  const auto x = x_.to(detail::value_dtype(x_, x_)).contiguous();
  auto codes = at::empty(x.sizes(), x.options());
  auto indices = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kLong));
  const int64_t dim = x.size(-1);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "sign_quantize", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = codes.mutable_data_ptr<scalar_t>();
    auto* index = indices.mutable_data_ptr<int64_t>();
    at::parallel_for(0, indices.numel(), kSignsPerTask / dim + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        index[row] =
            quantize_row(from + row * dim, dim, static_cast<scalar_t>(scale), to + row * dim);
      }
    });
  });
  return {codes, indices};
}

at::Tensor sign_decode(const at::Tensor& indices_, int64_t bits, double scale,
                       std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_sign_decode(indices_, bits, scale, dtype);
  const auto indices = indices_.contiguous();
  auto sizes = indices.sizes().vec();
  sizes.push_back(bits);
  auto codes = at::empty(sizes, indices.options().dtype(dtype));
  const auto* from = indices.const_data_ptr<int64_t>();
  const int64_t most = int64_t{1} << bits;
  std::atomic<int64_t> wrong{-1};
  AT_DISPATCH_FLOATING_TYPES(dtype, "sign_decode", [&] {
    auto* to = codes.mutable_data_ptr<scalar_t>();
    const auto value = static_cast<scalar_t>(scale);
    at::parallel_for(0, indices.numel(), kSignsPerTask / bits + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t index = from[row];
        if (index < -1 || index >= most) wrong = row;
        for (int64_t d = 0; d < bits; ++d) {
          const bool set = (index >> (bits - 1 - d)) & 1;
          to[row * bits + d] = index < 0 ? scalar_t{0} : set ? value : -value;
        }
      }
    });
  });
  TORCH_CHECK_INDEX(wrong < 0, "sign_decode: expected indices to be in [-1, ", most, "), but got ",
                    from[wrong < 0 ? 0 : wrong.load()]);
  return codes;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("sign_quantize", sign_quantize);
  m.impl("sign_decode", sign_decode);
}

}  // namespace torchvq
