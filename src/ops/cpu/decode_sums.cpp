#include "ops/decode_sums.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/fixed_point.h"

namespace torchvq {
namespace {

template <typename T>
void decode(const at::Tensor& sums, const at::Tensor& exponents, T* to) {
  const auto* word = sums.const_data_ptr<int64_t>();
  const auto* exponent = exponents.const_data_ptr<int32_t>();
  const int64_t dim = sums.size(3), slots = exponents.numel();
  const int64_t* rest = sums.size(0) == 2 ? word + slots * dim : nullptr;
  at::parallel_for(0, slots, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, dim)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t slot = begin; slot < end; ++slot) {
                       for (int64_t i = slot * dim; i < (slot + 1) * dim; ++i) {
                         to[i] = static_cast<T>(
                             rest == nullptr
                                 ? kernels::decode_sum<T>(word[i], exponent[slot])
                                 : kernels::decode_sum_pair(word[i], rest[i], exponent[slot]));
                       }
                     }
                   });
}

at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  detail::check_decode_sums(sums, exponents, dtype);
  auto decoded = at::empty({sums.size(1), sums.size(2), sums.size(3)}, sums.options().dtype(dtype));
  if (dtype == at::kDouble) {
    decode(sums.contiguous(), exponents.contiguous(), decoded.mutable_data_ptr<double>());
  } else {
    decode(sums.contiguous(), exponents.contiguous(), decoded.mutable_data_ptr<float>());
  }
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("decode_sums", decode_sums); }

}  // namespace torchvq
