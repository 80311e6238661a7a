#include "ops/residual_decode.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor residual_decode(const at::Tensor& indices, at::TensorList codebooks) {
  detail::check_residual_decode(indices, codebooks);
  return indices.new_empty_symint(
      {indices.sym_size(0), indices.sym_size(1), codebooks[0].sym_size(-1)},
      indices.options().dtype(detail::residual_decode_dtype(codebooks)));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("residual_decode", residual_decode); }

}  // namespace torchvq
