#include "ops/lookup_codes.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor lookup_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  detail::check_lookup_codes(codebook, indices);
  return codebook.new_empty_symint(
      {codebook.sym_size(0), indices.sym_size(1), codebook.sym_size(2)});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("lookup_codes", lookup_codes); }

}  // namespace torchvq
