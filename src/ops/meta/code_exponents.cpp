#include "ops/code_exponents.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor code_exponents(const at::Tensor& codebook) {
  detail::check_code_exponents(codebook);
  return codebook.new_empty_symint({codebook.sym_size(0), codebook.sym_size(1)},
                                   codebook.options().dtype(at::kInt));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("code_exponents", code_exponents); }

}  // namespace torchvq
