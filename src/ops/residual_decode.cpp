#include <torchvq/ops/residual_decode.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/residual_decode.h"

namespace torchvq {

namespace detail {

void check_residual_decode(const at::Tensor& indices, at::TensorList codebooks) {
  constexpr auto op = "residual_decode";
  check_dtype(op, "indices", indices, at::kLong);
  check_rank(op, "indices", indices, 3, "(H, T, q)");
  TORCH_CHECK_VALUE(!codebooks.empty(), op,
                    ": expected codebooks to have at least 1 level, but got none");
  check_size(op, "indices", indices, 2, c10::SymInt(static_cast<int64_t>(codebooks.size())),
             "levels of codebooks");
  for (const auto& codebook : codebooks) {
    check_codebook_of_heads(op, codebook, indices.sym_size(0), "heads of indices");
    check_size(op, "codebook", codebook, -1, codebooks[0].sym_size(-1), "features of level 0");
    check_same_device(op, "indices", indices, "codebook", codebook);
  }
}

at::ScalarType residual_decode_dtype(at::TensorList codebooks) {
  auto dtype = codebooks[0].scalar_type();
  for (const auto& codebook : codebooks) dtype = c10::promoteTypes(dtype, codebook.scalar_type());
  return dtype;
}

}  // namespace detail

namespace ops {

at::Tensor residual_decode(const at::Tensor& indices, at::TensorList codebooks) {
  static auto op =
      detail::op_handle<at::Tensor(const at::Tensor&, at::TensorList)>("torchvq::residual_decode");
  return op.call(indices, codebooks);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("residual_decode(Tensor indices, Tensor[] codebooks) -> Tensor");
}
