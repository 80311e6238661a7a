#include "ops/linear_nearest_code.h"

#include <algorithm>
#include <tuple>

#include <torch/library.h>

#include <torchvq/ops/linear_nearest_code.h>

#include "detail/op_handle.h"
#include "detail/readable.h"
#include "detail/token_checks.h"
#include "ops/capture.h"
#include "ops/nearest_code.h"

namespace torchvq {

namespace detail {

void check_linear_nearest_code(const at::Tensor& x, const at::Tensor& frozen,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  constexpr auto op = "linear_nearest_code";
  check_tokens(op, "x", x);
  check_has_dim(op, x);
  check_size(op, "x", x, 0, 1, "head");
  check_floating(op, "frozen", frozen);
  check_rank(op, "frozen", frozen, 2, "(K, W)");
  TORCH_CHECK_VALUE(frozen.sym_size(0) >= 1, op,
                    ": expected frozen to have at least 1 code, but got shape ",
                    frozen.sym_sizes());
  check_dtype(op, "weight", weight, frozen.scalar_type());
  check_rank(op, "weight", weight, 2, "(D, W)");
  check_size(op, "weight", weight, 0, x.sym_size(2), "features of x");
  check_size(op, "weight", weight, 1, frozen.sym_size(1), "features of frozen");
  check_same_device(op, "x", x, "frozen", frozen);
  check_same_device(op, "x", x, "weight", weight);
  if (!bias) return;
  check_dtype(op, "bias", *bias, frozen.scalar_type());
  check_rank(op, "bias", *bias, 1, "(D,)");
  check_size(op, "bias", *bias, 0, x.sym_size(2), "features of x");
  check_same_device(op, "x", x, "bias", *bias);
}

void check_linear_nearest_code_backward(const at::Tensor& grad, const at::Tensor& absent,
                                        const at::Tensor& indices, const at::Tensor& frozen) {
  constexpr auto op = "linear_nearest_code_backward";
  check_tokens(op, "grad", grad);
  check_size(op, "grad", grad, 0, 1, "head");
  check_per_token(op, "absent", absent, at::kBool, grad);
  check_per_token(op, "indices", indices, at::kLong, grad);
  check_floating(op, "frozen", frozen);
  check_rank(op, "frozen", frozen, 2, "(K, W)");
  check_same_device(op, "grad", grad, "frozen", frozen);
}

namespace {

/// Whether memory shows that no token is absent.
bool none_is(const at::Tensor& absent) {
  if (!is_plain(absent)) return false;
  const bool* own = absent.const_data_ptr<bool>();
  return std::none_of(own, own + absent.numel(), [](bool is) { return is; });
}

}  // namespace

at::Tensor gradient_rows(const at::Tensor& grad, const at::Tensor& absent,
                         const at::Tensor& frozen) {
  // For few tokens a copy takes as long as the product that follows.
  const auto real = none_is(absent) ? grad : grad.masked_fill(absent.unsqueeze(-1), 0);
  return real.squeeze(0).to(frozen.scalar_type());
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> linear_nearest_code(const at::Tensor& x, const at::Tensor& frozen,
                                                      const at::Tensor& weight,
                                                      const std::optional<at::Tensor>& bias) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::linear_nearest_code");
  auto [codes, indices] = op.call(x, frozen, weight, bias);
  return {codes, indices};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "linear_nearest_code(Tensor x, Tensor frozen, Tensor weight, Tensor? bias=None) "
      "-> (Tensor codes, Tensor indices)",
      torchvq::detail::searches());
  // The gradients of weight and bias; private, called only by autograd.
  m.def(
      "linear_nearest_code_backward(Tensor grad, Tensor absent, Tensor indices, Tensor frozen) "
      "-> (Tensor, Tensor)");
}
