#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor snapshot(const at::Tensor& codebook) {
  return codebook.new_empty_symint(codebook.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("snapshot", snapshot); }

}  // namespace torchvq
