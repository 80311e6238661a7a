#include <torchvq/ops/residual_lookup.h>

#include <utility>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/residual_arguments.h"
#include "ops/residual_lookup.h"

namespace torchvq {

namespace detail {

void check_residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                           const at::Tensor& indices) {
  constexpr auto op = "residual_lookup";
  check_residual_arguments(op, x, codebooks, std::nullopt, std::nullopt);
  check_dtype(op, "indices", indices, at::kLong);
  check_rank(op, "indices", indices, 3, "(H, T, Q)");
  check_size(op, "indices", indices, 0, x.sym_size(0), "heads of x");
  check_size(op, "indices", indices, 1, x.sym_size(1), "tokens of x");
  check_size(op, "indices", indices, 2, c10::SymInt(static_cast<int64_t>(codebooks.size())),
             "levels of codebooks");
  check_same_device(op, "x", x, "indices", indices);
}

}  // namespace detail

namespace ops {

ResidualLookupOutput residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                                     const at::Tensor& indices) {
  using Signature =
      detail::ResidualLookupTensors(const at::Tensor&, at::TensorList, const at::Tensor&);
  static auto op = detail::op_handle<Signature>("torchvq::residual_lookup");
  auto [inputs, codes, quantized] = op.call(x, codebooks, indices);
  return {std::move(inputs), std::move(codes), std::move(quantized)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_lookup(Tensor x, Tensor[] codebooks, Tensor indices) "
      "-> (Tensor[] inputs, Tensor[] codes, Tensor quantized)");
}
