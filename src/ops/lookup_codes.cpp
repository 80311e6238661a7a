#include <torchvq/ops/lookup_codes.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/lookup_codes.h"

namespace torchvq {

namespace detail {

void check_lookup_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  constexpr auto op = "lookup_codes";
  check_floating(op, "codebook", codebook);
  check_dtype(op, "indices", indices, at::kLong);
  check_rank(op, "codebook", codebook, 3, "(H, K, D)");
  check_rank(op, "indices", indices, 2, "(H, N)");
  check_size(op, "indices", indices, 0, codebook.sym_size(0), "heads of codebook");
  TORCH_CHECK_VALUE(codebook.sym_size(1) >= 1, op,
                    ": expected codebook to have at least 1 code, but got shape ",
                    codebook.sym_sizes());
  check_same_device(op, "codebook", codebook, "indices", indices);
}

}  // namespace detail

namespace ops {

at::Tensor lookup_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  static auto op =
      detail::op_handle<at::Tensor(const at::Tensor&, const at::Tensor&)>("torchvq::lookup_codes");
  return op.call(codebook, indices);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("lookup_codes(Tensor codebook, Tensor indices) -> Tensor");
}
