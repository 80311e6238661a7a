// Any device, CPU included: calls its component operators one after the other.
#include "ops/quantize_and_commit.h"

#include <optional>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/rotation_trick.h>

#include "detail/transposed.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_and_commit(
    const at::Tensor& x, const at::Tensor& codebook, std::string_view estimator,
    const std::optional<at::Tensor>& mask, bool zeros_for_masked) {
  detail::check_quantize_and_commit(x, codebook, estimator, mask);
  const auto rows = detail::wide_rows(x);
  // The tokens decide the precision of the arithmetic.
  const auto options = ops::NearestCodeOptions().return_codes(true).mask(mask);
  auto nearest = ops::nearest_code(rows, codebook.to(rows.scalar_type()), options);
  auto& codes = nearest.codes;
  auto commitment = ops::commitment_loss(rows, codes, mask);
  // With any estimator the values are the codes. A copy, because users may write to the result.
  auto quantized = codes.reshape(x.sizes()).to(x.scalar_type(), /*non_blocking=*/false,
                                               /*copy=*/true);
  if (mask && !zeros_for_masked) {
    const auto real = mask->reshape(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
    quantized = at::where(real, quantized, x);
  }
  return {std::move(quantized), nearest.indices.reshape(x.sizes().slice(0, x.dim() - 1)),
          std::move(codes), std::move(commitment)};
}

at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes, bool rotates,
                                        const std::optional<at::Tensor>& mask,
                                        bool zeros_for_masked) {
  detail::check_quantize_and_commit_backward(grad_quantized, grad_commitment, x, codes, mask);
  const auto rows = detail::tokens_without_padding(x, mask);
  auto total = detail::contiguous_rows(grad_quantized).reshape(rows.sizes()).to(rows.scalar_type());
  if (rotates) total = ops::rotation_trick_backward(total, rows, codes);
  if (mask && zeros_for_masked) {
    total = total.masked_fill(mask->logical_not().unsqueeze(-1), 0);
  }
  const auto commitment = ops::commitment_loss_backward(grad_commitment, rows, codes, mask);
  return (total + commitment).to(x.scalar_type()).reshape(x.sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("quantize_and_commit", quantize_and_commit);
  m.impl("quantize_and_commit_backward", quantize_and_commit_backward);
}

}  // namespace torchvq
