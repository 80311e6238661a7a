#include "ops/sign_quantize.h"

#include <tuple>
#include <vector>

#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> sign_quantize(const at::Tensor& x, double scale) {
  detail::check_sign_quantize(x, scale);
  const auto sizes = x.sym_sizes();
  return {x.new_empty_symint(sizes, x.options().dtype(detail::value_dtype(x, x))),
          x.new_empty_symint(sizes.slice(0, sizes.size() - 1), x.options().dtype(at::kLong))};
}

at::Tensor sign_decode(const at::Tensor& indices, int64_t bits, double scale,
                       std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_sign_decode(indices, bits, scale, dtype);
  std::vector<c10::SymInt> sizes(indices.sym_sizes().begin(), indices.sym_sizes().end());
  sizes.emplace_back(bits);
  return indices.new_empty_symint(sizes, indices.options().dtype(dtype));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("sign_quantize", sign_quantize);
  m.impl("sign_decode", sign_decode);
}

}  // namespace torchvq
