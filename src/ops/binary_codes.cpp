#include "ops/binary_codes.h"

#include <torch/library.h>

#include <torchvq/ops/binary_codes.h>

#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/random_tensor.h"
#include "detail/token_checks.h"

namespace torchvq {

namespace detail {
namespace {

constexpr int64_t kMostBits = 30;

int64_t check_logits(const char* op, const at::Tensor& logits) {
  check_floating(op, "logits", logits);
  TORCH_CHECK_VALUE(logits.dim() >= 1, op,
                    ": expected logits to have shape (*, bits), but got a scalar");
  const auto bits = logits.sym_size(-1).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(bits >= 1 && bits <= kMostBits, op, ": expected logits to have 1 to ",
                    kMostBits, " bits, but got shape ", logits.sym_sizes());
  return bits;
}

void check_of_tokens(const char* op, const char* name, const at::Tensor& tensor,
                     at::ScalarType dtype, const at::Tensor& logits) {
  check_dtype(op, name, tensor, dtype);
  const auto tokens = logits.sym_sizes().slice(0, static_cast<size_t>(logits.dim() - 1));
  TORCH_CHECK_VALUE(tensor.sym_sizes() == tokens, op, ": expected ", name, " to have shape ",
                    tokens, ", that of logits without bits, but got ", tensor.sym_sizes());
  check_same_device(op, "logits", logits, name, tensor);
}

}  // namespace

int64_t check_binary_sample(const at::Tensor& logits, const std::optional<at::Tensor>& rng,
                            double temperature, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "binary_sample";
  const auto bits = check_logits(op, logits);
  check_non_negative(op, "temperature", temperature);
  if (rng) check_rng(op, *rng);
  if (mask) check_of_tokens(op, "mask", *mask, at::kBool, logits);
  return bits;
}

int64_t check_binary_one_hot(const at::Tensor& logits, const at::Tensor& indices,
                             double temperature) {
  constexpr auto op = "binary_one_hot";
  const auto bits = check_logits(op, logits);
  check_of_tokens(op, "indices", indices, at::kLong, logits);
  check_non_negative(op, "temperature", temperature);
  return bits;
}

int64_t check_binary_one_hot_backward(const at::Tensor& grad, const at::Tensor& logits,
                                      const at::Tensor& indices, double temperature) {
  const auto bits = check_binary_one_hot(logits, indices, temperature);
  constexpr auto op = "binary_one_hot_backward";
  check_floating(op, "grad", grad);
  check_same_device(op, "logits", logits, "grad", grad);
  const auto tokens = [](const at::Tensor& tensor) {
    return tensor.sym_sizes().slice(0, static_cast<size_t>(tensor.dim() - 1));
  };
  TORCH_CHECK_VALUE(grad.dim() == logits.dim() && tokens(grad) == tokens(logits) &&
                        grad.sym_size(-1) == (int64_t{1} << bits),
                    op, ": expected grad to have the tokens of logits and 2^", bits,
                    " codes, but got shapes ", grad.sym_sizes(), " and ", logits.sym_sizes());
  return bits;
}

void check_binary_kl_loss(const at::Tensor& logits, double threshold,
                          const std::optional<at::Tensor>& mask) {
  constexpr auto op = "binary_kl_loss";
  check_logits(op, logits);
  TORCH_CHECK_VALUE(threshold == threshold, op, ": expected threshold to be a number, but got ",
                    threshold);
  if (mask) check_of_tokens(op, "mask", *mask, at::kBool, logits);
}

void check_binary_kl_loss_backward(const at::Tensor& grad, const at::Tensor& logits,
                                   double threshold, const std::optional<at::Tensor>& mask,
                                   bool reduce) {
  constexpr auto op = "binary_kl_loss_backward";
  check_binary_kl_loss(logits, threshold, mask);
  if (!reduce) {
    check_of_tokens(op, "grad", grad, value_dtype(logits, logits), logits);
    return;
  }
  check_dtype(op, "grad", grad, value_dtype(logits, logits));
  check_rank(op, "grad", grad, 0, "()");
  check_same_device(op, "logits", logits, "grad", grad);
}

}  // namespace detail

namespace ops {

at::Tensor binary_sample(const at::Tensor& logits, const std::optional<at::Tensor>& rng,
                         double temperature, const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, double,
                               const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::binary_sample");
  return op.call(logits, rng, temperature, mask);
}

at::Tensor binary_one_hot(const at::Tensor& logits, const at::Tensor& indices, double temperature) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, double);
  static auto op = detail::op_handle<Signature>("torchvq::binary_one_hot");
  return op.call(logits, indices, temperature);
}

at::Tensor binary_kl_loss(const at::Tensor& logits, double threshold,
                          const std::optional<at::Tensor>& mask, bool reduce) {
  using Signature = at::Tensor(const at::Tensor&, double, const std::optional<at::Tensor>&, bool);
  static auto op = detail::op_handle<Signature>("torchvq::binary_kl_loss");
  return op.call(logits, threshold, mask, reduce);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "binary_sample(Tensor logits, Tensor? rng, *, float temperature=1.0, Tensor? mask=None) "
      "-> Tensor");
  m.def("binary_one_hot(Tensor logits, Tensor indices, *, float temperature=1.0) -> Tensor");
  // The gradient of the logits; private, called only by autograd.
  m.def(
      "binary_one_hot_backward(Tensor grad, Tensor logits, Tensor indices, float temperature) "
      "-> Tensor");
  m.def(
      "binary_kl_loss(Tensor logits, *, float threshold=0.0, Tensor? mask=None, bool reduce=True) "
      "-> Tensor");
  // The gradient of the logits; private, called only by autograd.
  m.def(
      "binary_kl_loss_backward(Tensor grad, Tensor logits, float threshold, Tensor? mask, "
      "bool reduce) -> Tensor");
}
