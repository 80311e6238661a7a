// Any device, CPU included: one block of tokens at a time, with matrix products by the device's own
// library. Two passes, since the gradient first needs the average over all tokens.
#include "ops/codebook_diversity_loss.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "ops/any/code_logits.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using detail::CodeLogits;
using DiversityLosses = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// One head. Masked tokens are read as zero and have weight zero.
struct DiversityHead {
  const CodeLogits& scores;
  const at::Tensor &x, &counted;  // (N, D), (N,)
  double temperature;
  int64_t block;

  /// Calls body(from, masked, scores, log-probabilities) for each block of tokens.
  template <typename Body>
  void for_each_block(const Body& body) const {
    for (int64_t from = 0; from < x.size(0); from += block) {
      const int64_t size = std::min(block, x.size(0) - from);
      const auto masked = counted.narrow(0, from, size).unsqueeze(-1).logical_not();
      const auto part = scores.forward(x.narrow(0, from, size).masked_fill(masked, 0));
      body(from, masked, part, (part.logits * temperature).log_softmax(-1));
    }
  }

  /// log(sum over tokens of p), (K,). Minus infinity without tokens.
  at::Tensor log_totals(const at::TensorOptions& options) const {
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    auto totals = at::full({scores.size()}, kNothing, options);
    for_each_block(
        [&](int64_t, const at::Tensor& masked, const CodeLogits::Block&, const at::Tensor& log_p) {
          totals = at::logaddexp(totals, log_p.masked_fill(masked, kNothing).logsumexp(0));
        });
    return totals;
  }

  /// `log_mean` (K,), `weight` (): temperature / (heads * tokens).
  void backward(const at::Tensor& log_mean, const at::Tensor& weight, const at::Tensor& grad_x,
                at::Tensor& grad_codes) const {
    for_each_block([&](int64_t from, const at::Tensor& masked, const CodeLogits::Block& part,
                       const at::Tensor& log_p) {
      const auto p = log_p.exp();
      const auto mean = (p * log_mean).sum(-1, /*keepdim=*/true);
      const auto grad = (p * (log_mean - mean)).mul_(weight).masked_fill_(masked, 0);
      const auto tokens_grad = scores.backward(part, grad, grad_codes);
      if (grad_x.defined()) {
        grad_x.narrow(0, from, masked.size(0)).copy_(tokens_grad.masked_fill(masked, 0));
      }
    });
  }
};

/// The terms from which the loss of one head is computed.
struct Mean {
  at::Tensor log_p;   // (K,)
  at::Tensor tokens;  // ()
  at::Tensor ranks;   // (), or undefined for one
};

Mean own_mean(const DiversityHead& head, const at::TensorOptions& options) {
  const auto tokens = head.counted.sum().to(options.dtype());
  auto log_p = (head.log_totals(options) - tokens.log()).masked_fill_(tokens.eq(0), 0);
  return {std::move(log_p), tokens, {}};
}

/// `totals` (K + 2): see codebook_diversity_totals.
Mean shared_mean(const at::Tensor& totals) {
  const int64_t codes = totals.size(0) - 2;
  const auto tokens = totals[codes];
  // A probability that underflowed is replaced by a tiny one; its share of loss and
  // gradient is 0 in either case.
  // is 0 either way.
  constexpr double kSmallest = -700;
  auto log_p = (totals.narrow(0, 0, codes) / tokens.clamp_min(1)).log().clamp_min_(kSmallest);
  return {log_p.masked_fill_(tokens.eq(0), 0), tokens, totals[codes + 1]};
}

at::Tensor codebook_diversity_totals(const at::Tensor& x, const at::Tensor& codebook,
                                     double temperature, c10::string_view metric_name,
                                     const std::optional<at::Tensor>& mask) {
  const auto metric =
      detail::check_codebook_diversity_loss(x, codebook, temperature, metric_name, mask);
  const auto options = x.options().dtype(detail::sum_dtype(x));
  const auto counted =
      mask.value_or(at::ones({x.size(0), x.size(1)}, x.options().dtype(at::kBool)));
  const int64_t codes = codebook.size(1);
  auto totals = at::ones({x.size(0), codes + 2}, options);
  for (int64_t h = 0; h < x.size(0); ++h) {
    const CodeLogits scores(codebook[h], metric);
    const auto rows = x[h], head_counted = counted[h];
    const DiversityHead head{scores, rows, head_counted, temperature,
                             detail::tokens_per_block(codebook)};
    totals[h].narrow(0, 0, codes).copy_(head.log_totals(options).exp());
    totals[h][codes].copy_(head_counted.sum());
  }
  return totals;
}

DiversityLosses codebook_diversity_loss_forward(const at::Tensor& x, const at::Tensor& codebook,
                                                double temperature, c10::string_view metric_name,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals,
                                                std::array<bool, 2> wanted) {
  const auto metric =
      detail::check_codebook_diversity_loss(x, codebook, temperature, metric_name, mask, totals);
  const auto options = x.options().dtype(detail::sum_dtype(x));
  const auto counted =
      mask.value_or(at::ones({x.size(0), x.size(1)}, x.options().dtype(at::kBool)));
  const auto heads = static_cast<double>(std::max<int64_t>(x.size(0), 1));
  detail::LossGradients grads(x, codebook, wanted);
  auto loss = at::zeros({}, options);
  for (int64_t h = 0; h < x.size(0); ++h) {
    const CodeLogits scores(codebook[h], metric);
    const auto rows = x[h], head_counted = counted[h];
    const DiversityHead head{scores, rows, head_counted, temperature,
                             detail::tokens_per_block(codebook)};
    const auto mean = totals.has_value() ? shared_mean((*totals)[h].to(options.dtype()))
                                         : own_mean(head, options);
    loss.add_(detail::divided((mean.log_p.exp() * mean.log_p).sum(), heads));
    if (!wanted[0] && !wanted[1]) continue;
    const auto grad_x = wanted[0] ? grads.x[h] : at::Tensor();
    auto grad_codes = wanted[1] ? at::zeros(codebook[h].sizes(), options) : at::Tensor();
    auto weight = (mean.tokens.clamp_min(1) * heads).reciprocal() * temperature;
    if (mean.ranks.defined()) weight = weight * mean.ranks;
    head.backward(mean.log_p, weight, grad_x, grad_codes);
    if (wanted[1]) grads.codebook[h].copy_(scores.codes_gradient(grad_codes));
  }
  return {loss.to(detail::value_dtype(x, codebook)), grads.x, grads.codebook};
}

at::Tensor codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                   double temperature, c10::string_view metric,
                                   const std::optional<at::Tensor>& mask,
                                   const std::optional<at::Tensor>& totals) {
  return std::get<0>(codebook_diversity_loss_forward(x, codebook, temperature, metric, mask, totals,
                                                     {false, false}));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("codebook_diversity_loss", codebook_diversity_loss);
  m.impl("codebook_diversity_totals", codebook_diversity_totals);
  m.impl("codebook_diversity_loss_forward", codebook_diversity_loss_forward);
}

}  // namespace torchvq
