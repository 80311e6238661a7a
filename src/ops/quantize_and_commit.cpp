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
namespace {

void check_tokens_to_commit(const char* op, const at::Tensor& x) {
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op,
                    ": expected x to have at least 2 dimensions (B, D), but got shape ",
                    x.sym_sizes());
}

}  // namespace

void check_quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                               std::string_view estimator) {
  constexpr auto op = "quantize_and_commit";
  check_tokens_to_commit(op, x);
  check_floating(op, "codebook", codebook);
  check_rank(op, "codebook", codebook, 3, "(1, K, D)");
  TORCH_CHECK_VALUE(codebook.sym_size(0) == 1, op,
                    ": expected codebook to be one codebook (1, K, D), but got shape ",
                    codebook.sym_sizes());
  check_size(op, "x", x, -1, codebook.sym_size(2), "features of codebook");
  TORCH_CHECK_VALUE(
      estimator == "straight_through" || estimator == "rotation_trick" || estimator == "none", op,
      ": expected estimator to be straight_through, rotation_trick or none, but got ", estimator);
}

void check_quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes) {
  constexpr auto op = "quantize_and_commit_backward";
  check_floating(op, "grad_quantized", grad_quantized);
  check_floating(op, "grad_commitment", grad_commitment);
  check_tokens_to_commit(op, x);
  TORCH_CHECK_VALUE(grad_quantized.sym_sizes() == x.sym_sizes(), op,
                    ": expected grad_quantized to have the shape of x, ", x.sym_sizes(),
                    ", but got ", grad_quantized.sym_sizes());
  TORCH_CHECK_VALUE(grad_commitment.dim() == 0, op,
                    ": expected grad_commitment to be a scalar (), but got shape ",
                    grad_commitment.sym_sizes());
  check_rank(op, "codes", codes, 3, "(1, N, D)");
  TORCH_CHECK_VALUE(codes.sym_size(0) == 1 && codes.sym_numel() == x.sym_numel() &&
                        codes.sym_size(2) == x.sym_size(-1),
                    op,
                    ": expected codes to be those of the tokens of x, (1, N, D), but got shape ",
                    codes.sym_sizes());
  TORCH_CHECK_TYPE(codes.scalar_type() == compute_dtype(x) &&
                       grad_commitment.scalar_type() == codes.scalar_type(),
                   op, ": expected codes and grad_commitment to be ", compute_dtype(x),
                   " as the arithmetic of x, but got ", codes.scalar_type(), " and ",
                   grad_commitment.scalar_type());
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

at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes, bool rotates) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);
  static auto op = detail::op_handle<Signature>("torchvq::quantize_and_commit_backward");
  return op.call(grad_quantized, grad_commitment, x, codes, rotates);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "quantize_and_commit(Tensor x, Tensor codebook, *, str estimator='rotation_trick') "
      "-> (Tensor quantized, Tensor indices, Tensor codes, Tensor commitment)",
      torchvq::detail::searches());
  m.def(
      "quantize_and_commit_backward(Tensor grad_quantized, Tensor grad_commitment, Tensor x, "
      "Tensor codes, *, bool rotates) -> Tensor");
}
