#include <torchvq/ops/code_exponents.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/code_exponents.h"

namespace torchvq {

namespace detail {

void check_code_exponents(const at::Tensor& codebook) {
  constexpr auto op = "code_exponents";
  check_floating(op, "codebook", codebook);
  check_rank(op, "codebook", codebook, 3, "(H, K, D)");
  TORCH_CHECK_VALUE(codebook.sym_size(1) >= 1 && codebook.sym_size(2) >= 1, op,
                    ": expected codebook to have at least 1 code and 1 dimension, but got shape ",
                    codebook.sym_sizes());
}

}  // namespace detail

namespace ops {

at::Tensor code_exponents(const at::Tensor& codebook) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&)>("torchvq::code_exponents");
  return op.call(codebook);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) { m.def("code_exponents(Tensor codebook) -> Tensor"); }
