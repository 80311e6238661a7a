#include "ops/rotation_trick.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  detail::check_rotation_trick(x, codes);
  return codes.new_empty_symint(codes.sym_sizes());
}

at::Tensor rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& codes) {
  detail::check_rotation_trick_backward(grad, x, codes);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("rotation_trick", rotation_trick);
  m.impl("rotation_trick_backward", rotation_trick_backward);
}

}  // namespace torchvq
