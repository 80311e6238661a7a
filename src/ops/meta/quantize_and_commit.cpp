#include "ops/quantize_and_commit.h"

#include <tuple>

#include <torch/library.h>

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_and_commit(
    const at::Tensor& x, const at::Tensor& codebook, std::string_view estimator,
    const std::optional<at::Tensor>& mask, bool /*zeros_for_masked*/) {
  detail::check_quantize_and_commit(x, codebook, estimator, mask);
  const auto rows = detail::wide_rows(x);
  const auto positions = x.sym_sizes().slice(0, x.dim() - 1);
  return {x.new_empty_symint(x.sym_sizes()),
          x.new_empty_symint(positions, x.options().dtype(at::kLong)),
          rows.new_empty_symint(rows.sym_sizes()), rows.new_empty_symint(c10::SymIntArrayRef{})};
}

at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes, bool /*rotates*/,
                                        const std::optional<at::Tensor>& mask,
                                        bool /*zeros_for_masked*/) {
  detail::check_quantize_and_commit_backward(grad_quantized, grad_commitment, x, codes, mask);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("quantize_and_commit", quantize_and_commit);
  m.impl("quantize_and_commit_backward", quantize_and_commit_backward);
}

}  // namespace torchvq
