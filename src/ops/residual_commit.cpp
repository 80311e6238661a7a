#include <torchvq/ops/residual_commit.h>

#include <utility>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/residual_arguments.h"
#include "ops/residual_commit.h"

namespace torchvq {

namespace detail {

void check_residual_commit(const at::Tensor& x, at::TensorList codebooks, const at::Tensor& indices,
                           const std::optional<at::Tensor>& mask, std::string_view estimator,
                           double gain) {
  constexpr auto op = "residual_commit";
  check_residual_arguments(op, x, codebooks, std::nullopt, mask);
  check_dtype(op, "indices", indices, at::kLong);
  check_rank(op, "indices", indices, 3, "(H, T, Q)");
  check_size(op, "indices", indices, 0, x.sym_size(0), "heads of x");
  check_size(op, "indices", indices, 1, x.sym_size(1), "tokens of x");
  check_size(op, "indices", indices, 2, c10::SymInt(static_cast<int64_t>(codebooks.size())),
             "levels of codebooks");
  check_same_device(op, "x", x, "indices", indices);
  TORCH_CHECK_VALUE(
      estimator == "straight_through" || estimator == "rotation_trick" || estimator == "none", op,
      ": expected estimator to be straight_through, rotation_trick or none, but got ", estimator);
  check_positive(op, "gain", gain);
}

void check_residual_commit_backward(const at::Tensor& grads, const at::Tensor& residuals,
                                    const std::optional<at::Tensor>& mask, double gain,
                                    const std::optional<at::Tensor>& other) {
  constexpr auto op = "residual_commit_backward";
  check_floating(op, "residuals", residuals);
  check_rank(op, "residuals", residuals, 4, "(Q, H, T, D)");
  TORCH_CHECK_VALUE(residuals.sym_size(0) >= 1, op,
                    ": expected residuals to have at least 1 level, but got none");
  check_dtype(op, "grads", grads, residuals.scalar_type());
  check_rank(op, "grads", grads, 1, "(Q,)");
  check_size(op, "grads", grads, 0, residuals.sym_size(0), "levels of residuals");
  check_same_device(op, "residuals", residuals, "grads", grads);
  check_positive(op, "gain", gain);
  if (!mask && !other) return;
  const auto level = residuals.select(0, 0);
  check_mask(op, mask, level);
  if (!other) return;
  check_dtype(op, "other", *other, residuals.scalar_type());
  check_same_tokens(op, "a level of residuals", level, "other", *other);
}

}  // namespace detail

namespace ops {

ResidualCommitOutput residual_commit(const at::Tensor& x, at::TensorList codebooks,
                                     const at::Tensor& indices,
                                     const std::optional<at::Tensor>& mask,
                                     std::string_view estimator, double gain) {
  using Signature =
      detail::ResidualCommitTensors(const at::Tensor&, at::TensorList, const at::Tensor&,
                                    const std::optional<at::Tensor>&, std::string_view, double);
  static auto op = detail::op_handle<Signature>("torchvq::residual_commit");
  auto [quantized, losses, residuals] = op.call(x, codebooks, indices, mask, estimator, gain);
  return {std::move(quantized), std::move(losses), std::move(residuals)};
}

at::Tensor residual_commit_backward(const at::Tensor& grads, const at::Tensor& residuals,
                                    const std::optional<at::Tensor>& mask, double gain,
                                    const std::optional<at::Tensor>& other) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                 const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::residual_commit_backward");
  return op.call(grads, residuals, mask, gain, other);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_commit(Tensor x, Tensor[] codebooks, Tensor indices, *, Tensor? mask=None, "
      "str estimator='rotation_trick', float gain=1.) "
      "-> (Tensor quantized, Tensor losses, Tensor residuals)");
  m.def(
      "residual_commit_backward(Tensor grads, Tensor residuals, *, Tensor? mask=None, "
      "float gain=1., Tensor? other=None) -> Tensor");
}
