// Any device: level after level by lookup_codes, the reference for the CPU kernel.
#include "ops/residual_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/lookup_codes.h>

#include "detail/non_finite.h"
#include "detail/residual_arguments.h"

namespace torchvq {
namespace {

detail::ResidualLookupTensors residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                                              const at::Tensor& indices) {
  detail::check_residual_lookup(x, codebooks, indices);
  const auto dtype = detail::residual_lookup_dtype(x);
  std::vector<at::Tensor> inputs, codes;
  auto residual = x.to(dtype).clone(at::MemoryFormat::Contiguous);
  auto total = at::zeros_like(residual);
  for (size_t level = 0; level < codebooks.size(); ++level) {
    const auto codebook = detail::expand_to_heads(codebooks[level].to(dtype), x.size(0));
    // Other lookups accept -1; here it must be out of range.
    auto own = indices.select(2, static_cast<int64_t>(level));
    own = own.masked_fill(own.eq(-1), -2);
    codes.push_back(detail::mark_non_finite(ops::lookup_codes(codebook, own), residual));
    inputs.push_back(residual);
    total = total + codes.back();
    residual = residual - codes.back();
  }
  return {inputs, codes, total};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_lookup", residual_lookup);
}

}  // namespace torchvq
