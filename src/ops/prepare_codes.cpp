#include <torchvq/ops/prepare_codes.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "kernels/cpu/prepared_codes.h"
#include "ops/capture.h"
#include "ops/prepare_codes.h"

namespace torchvq {

namespace detail {

void check_prepare_codes(const at::Tensor& codebook) {
  constexpr auto op = "prepare_codes";
  check_codebook_of_heads(op, codebook, codebook.sym_size(0), "heads");
  TORCH_CHECK_VALUE(codebook.sym_size(-1) >= 1, op,
                    ": expected codebook to have at least 1 feature, but got shape ",
                    codebook.sym_sizes());
}

std::vector<c10::SymInt> prepared_sizes(const at::Tensor& codebook) {
  const int64_t bytes =
      kernels::prepared_bytes(codebook.sym_size(-2).guard_int(__FILE__, __LINE__),
                              codebook.sym_size(-1).guard_int(__FILE__, __LINE__));
  if (codebook.dim() == 2) return {bytes};
  return {codebook.sym_size(0), bytes};
}

void check_prepared(const char* op, at::TensorList prepared, at::TensorList codebooks) {
  TORCH_CHECK_VALUE(prepared.size() == codebooks.size(), op, ": expected prepared to have ",
                    codebooks.size(), " levels, but got ", prepared.size());
  for (size_t n = 0; n < prepared.size(); ++n) {
    check_dtype(op, "prepared", prepared[n], at::kByte);
    check_same_device(op, "codebook", codebooks[n], "prepared", prepared[n]);
    const auto expected = prepared_sizes(codebooks[n]);
    TORCH_CHECK_VALUE(prepared[n].sym_sizes() == expected, op, ": expected prepared to have shape ",
                      c10::SymIntArrayRef(expected), " (prepare_codes of level ", n,
                      "), but got shape ", prepared[n].sym_sizes());
  }
}

}  // namespace detail

namespace ops {

at::Tensor prepare_codes(const at::Tensor& codebook) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&)>("torchvq::prepare_codes");
  return op.call(codebook);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("prepare_codes(Tensor codebook) -> Tensor", torchvq::detail::waits());
}
