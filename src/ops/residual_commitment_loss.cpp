#include <torchvq/ops/residual_commitment_loss.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/residual_commitment_loss.h"

namespace torchvq {

namespace detail {
namespace {

void check_levels(const char* op, at::TensorList inputs, at::TensorList codes,
                  const std::optional<at::Tensor>& mask) {
  TORCH_CHECK_VALUE(!inputs.empty(), op,
                    ": expected inputs to have at least 1 level, but got none");
  TORCH_CHECK_VALUE(inputs.size() == codes.size(), op, ": expected codes to have ", inputs.size(),
                    " levels, as inputs, but got ", codes.size());
  for (size_t level = 0; level < inputs.size(); ++level) {
    check_same_tokens(op, "inputs", inputs[level], "codes", codes[level]);
    check_same_tokens(op, "inputs of level 0", inputs[0], "inputs", inputs[level]);
    check_dtype(op, "inputs", inputs[level], inputs[0].scalar_type());
    check_dtype(op, "codes", codes[level], codes[0].scalar_type());
  }
  check_mask(op, mask, inputs[0]);
}

}  // namespace

void check_residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "residual_commitment_loss";
  check_levels(op, inputs, codes, mask);
  check_same_tokens(op, "x", x, "inputs", inputs[0]);
}

void check_residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask) {
  constexpr auto op = "residual_commitment_loss_backward";
  check_levels(op, inputs, codes, mask);
  check_dtype(op, "grads", grads, residual_loss_dtype(inputs, codes));
  check_rank(op, "grads", grads, 1, "(Q,)");
  check_size(op, "grads", grads, 0, c10::SymInt(static_cast<int64_t>(inputs.size())),
             "levels of inputs");
  check_same_device(op, "inputs", inputs[0], "grads", grads);
}

}  // namespace detail

namespace ops {

at::Tensor residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, at::TensorList, at::TensorList,
                               const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::residual_commitment_loss");
  return op.call(x, inputs, codes, mask);
}

at::Tensor residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, at::TensorList, at::TensorList,
                               const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::residual_commitment_loss_backward");
  return op.call(grads, inputs, codes, mask);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_commitment_loss(Tensor x, Tensor[] inputs, Tensor[] codes, *, Tensor? mask=None) "
      "-> Tensor");
  m.def(
      "residual_commitment_loss_backward(Tensor grads, Tensor[] inputs, Tensor[] codes, *, "
      "Tensor? mask=None) -> Tensor");
}
