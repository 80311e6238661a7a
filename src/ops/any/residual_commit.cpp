// Any device: level after level by lookup_codes and commitment_loss, the reference for the CPU kernel.
#include "ops/residual_commit.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/index_range.h"
#include "detail/non_finite.h"
#include "detail/residual_arguments.h"
#include "ops/loss_gradients.h"
#include "ops/unit_vectors.h"

namespace torchvq {
namespace {

detail::ResidualCommitTensors residual_commit(const at::Tensor& x, at::TensorList codebooks,
                                              const at::Tensor& indices,
                                              const std::optional<at::Tensor>& mask,
                                              std::string_view estimator, double gain) {
  detail::check_residual_commit(x, codebooks, indices, mask, estimator, gain);
  const auto dtype = detail::compute_dtype(x);
  std::vector<at::Tensor> losses, residuals;
  auto residual = x.to(dtype);
  auto total = at::zeros_like(residual, at::MemoryFormat::Contiguous);
  for (size_t level = 0; level < codebooks.size(); ++level) {
    const auto codebook = detail::expand_to_heads(codebooks[level].to(dtype), x.size(0));
    // Other lookups accept -1; here it must be out of range.
    auto own = indices.select(2, static_cast<int64_t>(level));
    detail::check_index_range("residual_commit", "indices", own, codebooks[level].size(-2),
                              /*least=*/0);
    own = own.masked_fill(own.eq(-1), -2);
    const auto codes = detail::mark_non_finite(ops::lookup_codes(codebook, own), residual);
    losses.push_back(ops::commitment_loss(residual, codes, mask));
    total = total + codes;
    residual = residual - codes;
    residuals.push_back(residual);
  }
  return {total, at::stack(losses), at::stack(residuals)};
}

at::Tensor residual_commit_backward(const at::Tensor& grads, const at::Tensor& residuals,
                                    const std::optional<at::Tensor>& mask, double gain,
                                    const std::optional<at::Tensor>& other) {
  detail::check_residual_commit_backward(grads, residuals, mask, gain, other);
  const auto levels = residuals.unbind(0);
  const auto scales =
      detail::commitment_gradient_scale(grads, levels[0], mask.value_or(at::Tensor()));
  at::Tensor total;
  for (auto level = static_cast<int64_t>(levels.size()) - 1; level >= 0; --level) {
    auto own = levels[level];
    if (mask) own = own.masked_fill(mask->logical_not().unsqueeze(-1), 0);
    own = own.mul(scales[level]);
    total = total.defined() ? own.add_(total) : own;
  }
  total.mul_(1 / gain);
  return other ? total.add_(*other) : total;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_commit", residual_commit);
  m.impl("residual_commit_backward", residual_commit_backward);
}

}  // namespace torchvq
