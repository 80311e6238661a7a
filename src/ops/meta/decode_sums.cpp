#include "ops/decode_sums.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  detail::check_decode_sums(sums, exponents, dtype);
  return sums.new_empty_symint({sums.sym_size(1), sums.sym_size(2), sums.sym_size(3)},
                               sums.options().dtype(dtype));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("decode_sums", decode_sums); }

}  // namespace torchvq
