#include <torchvq/ops/quantize_and_commit.h>

#include <tuple>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/capture.h"
#include "ops/quantize_and_commit.h"
#include "ops/unit_vectors.h"

namespace torchvq {

namespace detail {

void check_quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                               std::string_view estimator) {
  constexpr auto op = "quantize_and_commit";
  check_floating(op, "x", x);
  check_floating(op, "codebook", codebook);
  TORCH_CHECK_VALUE(x.dim() >= 2, op,
                    ": expected x to have at least 2 dimensions (B, D), but got shape ",
                    x.sym_sizes());
  check_rank(op, "codebook", codebook, 3, "(1, K, D)");
  TORCH_CHECK_VALUE(codebook.sym_size(0) == 1, op,
                    ": expected codebook to be one codebook (1, K, D), but got shape ",
                    codebook.sym_sizes());
  check_size(op, "x", x, -1, codebook.sym_size(2), "features of codebook");
  TORCH_CHECK_VALUE(
      estimator == "straight_through" || estimator == "rotation_trick" || estimator == "none", op,
      ": expected estimator to be straight_through, rotation_trick or none, but got ", estimator);
}

at::Tensor wide_rows(const at::Tensor& x) {
  c10::SymInt rows = 1;
  for (const auto& size : x.sym_sizes().slice(0, x.dim() - 1)) rows *= size;
  return x.reshape_symint({1, rows, x.sym_size(-1)}).to(compute_dtype(x));
}

}  // namespace detail

namespace ops {

QuantizedAndCommitted quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                                          std::string_view estimator) {
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  static auto op =
      detail::op_handle<Result(const at::Tensor&, const at::Tensor&, std::string_view)>(
          "torchvq::quantize_and_commit");
  auto [quantized, indices, codes, commitment] = op.call(x, codebook, estimator);
  return {std::move(quantized), std::move(indices), std::move(codes), std::move(commitment)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "quantize_and_commit(Tensor x, Tensor codebook, *, str estimator='rotation_trick') "
      "-> (Tensor quantized, Tensor indices, Tensor codes, Tensor commitment)",
      torchvq::detail::searches());
}
