// Any device: level after level by lookup_codes, the reference for the CPU kernel.
#include "ops/residual_decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/ops/lookup_codes.h>

#include "detail/index_range.h"
#include "detail/residual_arguments.h"

namespace torchvq {
namespace {

at::Tensor residual_decode(const at::Tensor& indices, at::TensorList codebooks) {
  detail::check_residual_decode(indices, codebooks);
  const auto dtype = detail::residual_decode_dtype(codebooks);
  const auto options = indices.options().dtype(detail::compute_dtype(dtype));
  auto total = at::zeros({indices.size(0), indices.size(1), codebooks[0].size(-1)}, options);
  for (size_t n = 0; n < codebooks.size(); ++n) {
    const auto level = indices.select(2, static_cast<int64_t>(n));
    detail::check_index_range("residual_decode", "indices", level, codebooks[n].size(-2));
    const auto codes = detail::expand_to_heads(codebooks[n].to(options.dtype()), indices.size(0));
    total = total + ops::lookup_codes(codes, level);
  }
  return total.to(dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_decode", residual_decode);
}

}  // namespace torchvq
