#include <torchvq/functional/binary_codes.h>

#include <cmath>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/where.h>
#include <torch/library.h>
#include <torchvq/ops/binary_codes.h>
#include <torchvq/ops/scalar_decode.h>

#include "detail/checks.h"
#include "detail/precision.h"

namespace torchvq::functional {

at::Tensor binary_entropy(const at::Tensor& logits) {
  const auto told = ops::binary_kl_loss(logits, 0.0, std::nullopt, /*reduce=*/false);
  return static_cast<double>(logits.size(-1)) * std::log(2.0) - told;
}

at::Tensor binary_log_prob(const at::Tensor& logits, const std::optional<at::Tensor>& indices,
                           const std::optional<at::Tensor>& one_hot, bool sum_bits) {
  constexpr auto op = "binary_log_prob";
  detail::check_floating(op, "logits", logits);
  TORCH_CHECK_VALUE(indices.has_value() != one_hot.has_value(), op,
                    ": expected exactly one of indices and one_hot, but got ",
                    indices.has_value() ? "both" : "none");
  detail::check_defined(op, indices ? "indices" : "one_hot", indices ? *indices : *one_hot);
  const auto codes = indices ? *indices : one_hot->argmax(-1);
  TORCH_CHECK_VALUE(logits.dim() == codes.dim() + 1, op,
                    ": expected one code per token of logits of shape ", logits.sym_sizes(),
                    ", but got codes of shape ", codes.sym_sizes());
  const std::vector<int64_t> pairs(static_cast<size_t>(logits.size(-1)), 2);
  const auto bits = ops::scalar_level_indices(codes, pairs);
  const auto wide = logits.to(detail::value_dtype(logits, logits));
  const auto chances =
      at::log_sigmoid(at::where(bits.eq(1), wide, -wide)).masked_fill(bits.lt(0), 0);
  return sum_bits ? chances.sum(-1) : chances;
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("binary_entropy(Tensor logits) -> Tensor", TORCH_FN(torchvq::functional::binary_entropy));
  m.def(
      "binary_log_prob(Tensor logits, Tensor? indices, Tensor? one_hot=None, bool sum_bits=True) "
      "-> Tensor",
      TORCH_FN(torchvq::functional::binary_log_prob));
}
