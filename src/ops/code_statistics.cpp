#include <torchvq/ops/code_statistics.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/token_mask.h"
#include "ops/code_statistics.h"

namespace torchvq {

namespace detail {

void check_code_statistics(const at::Tensor& x, const at::Tensor& indices,
                           const at::Tensor& exponents, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "code_statistics";
  check_floating(op, "x", x);
  check_dtype(op, "indices", indices, at::kLong);
  check_dtype(op, "exponents", exponents, at::kInt);
  check_rank(op, "x", x, 3, "(H, N, D)");
  check_rank(op, "indices", indices, 2, "(H, N)");
  check_rank(op, "exponents", exponents, 2, "(H, K)");
  check_size(op, "indices", indices, 0, x.sym_size(0), "heads of x");
  check_size(op, "indices", indices, 1, x.sym_size(1), "tokens of x");
  check_size(op, "exponents", exponents, 0, x.sym_size(0), "heads of x");
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1, op,
                    ": expected x to have at least 1 dimension, but got shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(exponents.sym_size(1) >= 1, op,
                    ": expected exponents to have at least 1 code, but got shape ",
                    exponents.sym_sizes());
  check_same_device(op, "x", x, "indices", indices);
  check_same_device(op, "x", x, "exponents", exponents);
  check_token_mask(op, mask, x);
}

}  // namespace detail

namespace ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> code_statistics(
    const at::Tensor& x, const at::Tensor& indices, const at::Tensor& exponents,
    const std::optional<at::Tensor>& mask) {
  using Signature = detail::StatisticsTensors(const at::Tensor&, const at::Tensor&,
                                              const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::code_statistics");
  return op.call(x, indices, exponents, mask);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "code_statistics(Tensor x, Tensor indices, Tensor exponents, *, Tensor? mask=None) -> "
      "(Tensor counts, Tensor sums, Tensor exponents)");
}
