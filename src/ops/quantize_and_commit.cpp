#include <torchvq/ops/quantize_and_commit.h>

#include <tuple>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/capture.h"
#include "ops/nearest_code.h"
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

c10::SymInt rows_of(const at::Tensor& x) {
  c10::SymInt rows = 1;
  for (const auto& size : x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1))) rows *= size;
  return rows;
}

void check_mask_of_rows(const char* op, const std::optional<at::Tensor>& mask,
                        const at::Tensor& x) {
  if (!mask) return;
  check_dtype(op, "mask", *mask, at::kBool);
  check_rank(op, "mask", *mask, 2, "(1, N)");
  check_size(op, "mask", *mask, 0, 1, "codebooks");
  check_size(op, "mask", *mask, 1, rows_of(x), "tokens of x");
  check_same_device(op, "x", x, "mask", *mask);
}

}  // namespace

void check_quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                               std::string_view estimator, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "quantize_and_commit";
  check_tokens_to_commit(op, x);
  check_has_dim(op, x);
  check_floating(op, "codebook", codebook);
  check_rank(op, "codebook", codebook, 3, "(1, K, D)");
  TORCH_CHECK_VALUE(codebook.sym_size(0) == 1 && codebook.sym_size(1) >= 1, op,
                    ": expected codebook to be one codebook (1, K, D) of at least 1 code, but got "
                    "shape ",
                    codebook.sym_sizes());
  check_size(op, "x", x, -1, codebook.sym_size(2), "features of codebook");
  TORCH_CHECK_VALUE(
      estimator == "straight_through" || estimator == "rotation_trick" || estimator == "none", op,
      ": expected estimator to be straight_through, rotation_trick or none, but got ", estimator);
  check_mask_of_rows(op, mask, x);
}

void check_quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes,
                                        const std::optional<at::Tensor>& mask) {
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
  check_mask_of_rows(op, mask, x);
}

at::Tensor wide_rows(const at::Tensor& x) {
  return x.reshape_symint({1, rows_of(x), x.sym_size(-1)}).to(compute_dtype(x));
}

at::Tensor tokens_without_padding(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto rows = wide_rows(x);
  return mask ? rows.masked_fill(mask->logical_not().unsqueeze(-1), 0) : rows;
}

}  // namespace detail

namespace ops {

QuantizedAndCommitted quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                                          std::string_view estimator,
                                          const std::optional<at::Tensor>& mask,
                                          bool zeros_for_masked) {
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  using Signature = Result(const at::Tensor&, const at::Tensor&, std::string_view,
                           const std::optional<at::Tensor>&, bool);
  static auto op = detail::op_handle<Signature>("torchvq::quantize_and_commit");
  auto [quantized, indices, codes, commitment] =
      op.call(x, codebook, estimator, mask, zeros_for_masked);
  return {std::move(quantized), std::move(indices), std::move(codes), std::move(commitment)};
}

at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes, bool rotates,
                                        const std::optional<at::Tensor>& mask,
                                        bool zeros_for_masked) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, bool, const std::optional<at::Tensor>&, bool);
  static auto op = detail::op_handle<Signature>("torchvq::quantize_and_commit_backward");
  return op.call(grad_quantized, grad_commitment, x, codes, rotates, mask, zeros_for_masked);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "quantize_and_commit(Tensor x, Tensor codebook, *, str estimator='rotation_trick', "
      "Tensor? mask=None, bool zeros_for_masked=True) -> (Tensor quantized, Tensor indices, Tensor "
      "codes, Tensor commitment)",
      torchvq::detail::searches());
  m.def(
      "quantize_and_commit_backward(Tensor grad_quantized, Tensor grad_commitment, Tensor x, "
      "Tensor codes, *, bool rotates, Tensor? mask=None, bool zeros_for_masked=True) -> Tensor");
}
