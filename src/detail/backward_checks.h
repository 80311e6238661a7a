// Argument checks of backward operators, which are meant for autograd but can be called by anyone.
#pragma once

#include "detail/checks.h"

namespace torchvq::detail {

inline void check_same_shape(const char* op, const char* a_name, const at::Tensor& a,
                             const char* b_name, const at::Tensor& b) {
  TORCH_CHECK_VALUE(a.sym_sizes() == b.sym_sizes(), op, ": expected ", a_name,
                    " to have the shape of ", b_name, ", but got ", a.sym_sizes(), " and ",
                    b.sym_sizes());
  check_same_device(op, a_name, a, b_name, b);
}

}  // namespace torchvq::detail
