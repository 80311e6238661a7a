#include "ops/binary_codes.h"

#include <torch/library.h>

namespace torchvq {
namespace {

c10::SymIntArrayRef tokens_of(const at::Tensor& logits) {
  return logits.sym_sizes().slice(0, static_cast<size_t>(logits.dim() - 1));
}

at::Tensor binary_sample(const at::Tensor& logits, const std::optional<at::Tensor>& rng,
                         double temperature, const std::optional<at::Tensor>& mask) {
  detail::check_binary_sample(logits, rng, temperature, mask);
  return logits.new_empty_symint(tokens_of(logits), logits.options().dtype(at::kLong));
}

at::Tensor binary_one_hot(const at::Tensor& logits, const at::Tensor& indices, double temperature) {
  const auto bits = detail::check_binary_one_hot(logits, indices, temperature);
  auto sizes = tokens_of(logits).vec();
  sizes.emplace_back(int64_t{1} << bits);
  return logits.new_empty_symint(sizes);
}

at::Tensor binary_one_hot_backward(const at::Tensor& grad, const at::Tensor& logits,
                                   const at::Tensor& indices, double temperature) {
  detail::check_binary_one_hot_backward(grad, logits, indices, temperature);
  return logits.new_empty_symint(logits.sym_sizes());
}

at::Tensor binary_kl_loss(const at::Tensor& logits, double threshold,
                          const std::optional<at::Tensor>& mask, bool reduce) {
  detail::check_binary_kl_loss(logits, threshold, mask);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return logits.new_empty_symint(reduce ? c10::SymIntArrayRef() : tokens_of(logits),
                                 logits.options().dtype(dtype));
}

at::Tensor binary_kl_loss_backward(const at::Tensor& grad, const at::Tensor& logits,
                                   double threshold, const std::optional<at::Tensor>& mask,
                                   bool reduce) {
  detail::check_binary_kl_loss_backward(grad, logits, threshold, mask, reduce);
  return logits.new_empty_symint(logits.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("binary_sample", binary_sample);
  m.impl("binary_one_hot", binary_one_hot);
  m.impl("binary_one_hot_backward", binary_one_hot_backward);
  m.impl("binary_kl_loss", binary_kl_loss);
  m.impl("binary_kl_loss_backward", binary_kl_loss_backward);
}

}  // namespace torchvq
