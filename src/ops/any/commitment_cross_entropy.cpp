// Any device, CPU included: one block of tokens at a time, with matrix products by
// the device's own library.
#include "ops/commitment_cross_entropy.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/index_range.h"
#include "ops/any/code_logits.h"
#include "ops/any/score_passes.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using detail::CodeLogits;
using CrossEntropyLosses = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// One head: returns the sum of the losses and writes the gradients of loss / count.
struct CrossEntropyHead {
  const CodeLogits& scores;
  const at::Tensor &x, &targets, &counted, &weight;  // (N, D), (N,), (N,), ()
  at::Tensor grad_x, grad_codes;                     // undefined where not wanted

  at::Tensor block_loss(int64_t from, int64_t size) {
    const auto valid = counted.narrow(0, from, size).unsqueeze(-1);
    const auto tokens = x.narrow(0, from, size).masked_fill(valid.logical_not(), 0);
    const auto target =
        targets.narrow(0, from, size).unsqueeze(-1).masked_fill(valid.logical_not(), 0);
    const auto block = scores.forward(tokens);
    const bool wants_slopes = grad_x.defined() || grad_codes.defined();
    auto [losses, slopes] =
        detail::cross_entropies(block.logits, target, valid, weight, wants_slopes);
    if (wants_slopes) {
      const auto tokens_grad = scores.backward(block, std::move(slopes), grad_codes);
      if (grad_x.defined()) {
        grad_x.narrow(0, from, size).copy_(tokens_grad.masked_fill(valid.logical_not(), 0));
      }
    }
    return losses.sum();
  }
};

CrossEntropyLosses commitment_cross_entropy_forward(const at::Tensor& x, const at::Tensor& codebook,
                                                    const at::Tensor& targets,
                                                    c10::string_view metric_name,
                                                    const std::optional<at::Tensor>& mask,
                                                    std::array<bool, 2> wanted) {
  const auto metric =
      detail::check_commitment_cross_entropy(x, codebook, targets, metric_name, mask);
  detail::check_index_range("commitment_cross_entropy", "targets", targets, codebook.size(1));
  const auto counted = mask.has_value() ? targets.ge(0).logical_and(*mask) : targets.ge(0);
  const auto options = x.options().dtype(detail::sum_dtype(x));
  const auto weight = counted.sum().clamp_min(1).to(options.dtype()).reciprocal();
  detail::LossGradients grads(x, codebook, wanted);
  auto loss = at::zeros({}, options);
  for (int64_t h = 0; h < x.size(0); ++h) {
    const CodeLogits scores(codebook[h], metric);
    const auto rows = x[h], head_targets = targets[h], head_counted = counted[h];
    CrossEntropyHead head{scores, rows, head_targets, head_counted, weight, {}, {}};
    if (wanted[0]) head.grad_x = grads.x[h];
    if (wanted[1]) head.grad_codes = at::zeros(codebook[h].sizes(), options);
    const int64_t tokens = x.size(1), block = detail::tokens_per_block(codebook);
    for (int64_t from = 0; from < tokens; from += block) {
      loss.add_(head.block_loss(from, std::min(block, tokens - from)));
    }
    if (wanted[1]) {
      // Without a target, codes that are not finite have a zero gradient, too.
      const auto grad = scores.codes_gradient(head.grad_codes);
      grads.codebook[h].copy_(grad.masked_fill(head_counted.any().logical_not(), 0));
    }
  }
  return {(loss * weight).to(detail::value_dtype(x, codebook)), grads.x, grads.codebook};
}

at::Tensor commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& targets, c10::string_view metric,
                                    const std::optional<at::Tensor>& mask) {
  return std::get<0>(
      commitment_cross_entropy_forward(x, codebook, targets, metric, mask, {false, false}));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("commitment_cross_entropy", commitment_cross_entropy);
  m.impl("commitment_cross_entropy_forward", commitment_cross_entropy_forward);
}

}  // namespace torchvq
