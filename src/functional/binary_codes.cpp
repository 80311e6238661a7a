#include <torchvq/functional/binary_codes.h>

#include <algorithm>
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
namespace {

/// The index of each code; -1 for a token without one, such as padding, which is all zeros.
at::Tensor codes_of_one_hot(const at::Tensor& one_hot) {
  const auto dtype = one_hot.scalar_type();
  TORCH_CHECK_TYPE(!at::isComplexType(dtype),
                   "binary_log_prob: expected one_hot to be real, but got ", dtype);
  const auto ordered = dtype == at::kBool ? one_hot.to(at::kByte) : one_hot;
  return ordered.argmax(-1).masked_fill(one_hot.ne(0).any(-1).logical_not(), -1);
}

}  // namespace

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
  const auto& given = indices ? *indices : *one_hot;
  detail::check_defined(op, indices ? "indices" : "one_hot", given);
  TORCH_CHECK_VALUE(logits.dim() >= 1, op, ": expected logits to have shape (*, H), but got ",
                    logits.sym_sizes());
  const auto tokens = logits.sym_sizes().slice(0, logits.dim() - 1);
  const bool fits = given.dim() == logits.dim() - (indices ? 1 : 0) &&
                    given.sym_sizes().slice(0, logits.dim() - 1) == tokens;
  TORCH_CHECK_VALUE(fits, op, ": expected one code per token of logits of shape ",
                    logits.sym_sizes(), ", but got ", indices ? "indices" : "one_hot", " of shape ",
                    given.sym_sizes());
  if (one_hot) {
    const auto codes_count = int64_t{1} << std::min<int64_t>(logits.size(-1), 62);
    TORCH_CHECK_VALUE(one_hot->sym_size(-1) == codes_count, op, ": expected one_hot to have ",
                      codes_count, " codes on its last axis, but got ", one_hot->sym_size(-1));
  }
  const auto codes = indices ? *indices : codes_of_one_hot(*one_hot);
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
