#include "ops/residual_lookup.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::ResidualLookupTensors residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                                              const at::Tensor& indices) {
  detail::check_residual_lookup(x, codebooks, indices);
  const auto empty = [&] {
    return x.new_empty_symint(x.sym_sizes(), x.options().dtype(detail::residual_lookup_dtype(x)));
  };
  std::vector<at::Tensor> inputs, codes;
  for (size_t level = 0; level < codebooks.size(); ++level) {
    inputs.push_back(empty());
    codes.push_back(empty());
  }
  return {inputs, codes, empty()};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("residual_lookup", residual_lookup); }

}  // namespace torchvq
