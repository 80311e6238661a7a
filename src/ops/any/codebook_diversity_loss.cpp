// Any device, CPU included: one block of tokens at a time, with matrix products by the device's own
// library. Two passes, since the gradient first needs the average over all tokens.
#include "ops/codebook_diversity_loss.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "ops/any/code_logits.h"
#include "ops/any/score_passes.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using detail::CodeLogits;
using DiversityLosses = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Some tokens of a head.
struct DiversityBlock {
  int64_t from, size;
  at::Tensor masked;  // (n, 1), undefined without a mask
  CodeLogits::Block scores;
};

// Blocks whose scores are kept from the average to the gradient in memory, which saves a matrix
// product; elsewhere one.
constexpr int64_t kKeptBlocks = 16;

/// One head. Masked tokens are read as zero and have weight zero.
struct DiversityHead {
  const CodeLogits& scores;
  const at::Tensor &x, &counted;  // (N, D), (N,)
  bool is_masked;
  double temperature;
  int64_t block;

  DiversityBlock read(int64_t from) const {
    const int64_t size = std::min(block, x.size(0) - from);
    auto rows = x.narrow(0, from, size);
    at::Tensor masked;
    if (is_masked) {
      masked = counted.narrow(0, from, size).unsqueeze(-1).logical_not();
      rows = rows.masked_fill(masked, 0);
    }
    auto part = scores.forward(rows);
    return {from, size, std::move(masked), std::move(part)};
  }

  bool keeps_blocks() const { return x.size(0) <= block * (x.is_cpu() ? kKeptBlocks : 1); }

  /// Sum over tokens of p, (K,). `kept`, if any, receives the blocks.
  at::Tensor totals(const at::TensorOptions& options,
                    std::vector<DiversityBlock>* kept = nullptr) const {
    auto totals = at::zeros({scores.size()}, options);
    for (int64_t from = 0; from < x.size(0); from += block) {
      auto part = read(from);
      totals.add_(detail::probability_totals(part.scores.logits, temperature, part.masked));
      if (kept != nullptr) kept->push_back(std::move(part));
    }
    return totals;
  }

  /// `log_mean` (K,), `weight` (): temperature / (heads * tokens). `kept`: the blocks, or none.
  void backward(const at::Tensor& log_mean, const at::Tensor& weight,
                std::vector<DiversityBlock> kept, const at::Tensor& grad_x,
                at::Tensor& grad_codes) const {
    for (int64_t from = 0; from < x.size(0); from += block) {
      const auto part =
          kept.empty() ? read(from) : std::move(kept[static_cast<size_t>(from / block)]);
      auto slopes =
          detail::diversity_slopes(part.scores.logits, temperature, log_mean, weight, part.masked);
      auto tokens_grad = scores.backward(part.scores, std::move(slopes), grad_codes);
      if (!grad_x.defined()) continue;
      if (is_masked) tokens_grad.masked_fill_(part.masked, 0);
      grad_x.narrow(0, from, part.size).copy_(tokens_grad);
    }
  }
};

/// The terms from which the loss of one head is computed.
struct Mean {
  at::Tensor log_p;   // (K,)
  at::Tensor tokens;  // ()
  at::Tensor ranks;   // (), or undefined for one
};

/// `totals` (K,) of probabilities, `tokens` ().
at::Tensor log_mean(const at::Tensor& totals, const at::Tensor& tokens) {
  // A probability that underflowed is replaced by a tiny one; its share of loss and
  // gradient is 0 in either case.
  constexpr double kSmallest = -700;
  return (totals / tokens.clamp_min(1)).log().clamp_min_(kSmallest).masked_fill_(tokens.eq(0), 0);
}

Mean own_mean(const DiversityHead& head, const at::TensorOptions& options,
              std::vector<DiversityBlock>* kept) {
  const auto tokens = head.counted.sum().to(options.dtype());
  return {log_mean(head.totals(options, kept), tokens), tokens, {}};
}

/// `totals` (K + 2): see codebook_diversity_totals.
Mean shared_mean(const at::Tensor& totals) {
  const int64_t codes = totals.size(0) - 2;
  const auto tokens = totals[codes];
  return {log_mean(totals.narrow(0, 0, codes), tokens), tokens, totals[codes + 1]};
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
    const DiversityHead head{scores,           rows,        head_counted,
                             mask.has_value(), temperature, detail::tokens_per_block(codebook)};
    totals[h].narrow(0, 0, codes).copy_(head.totals(options));
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
    const DiversityHead head{scores,           rows,        head_counted,
                             mask.has_value(), temperature, detail::tokens_per_block(codebook)};
    std::vector<DiversityBlock> kept;
    const bool keeps = (wanted[0] || wanted[1]) && head.keeps_blocks();
    const auto mean = totals.has_value() ? shared_mean((*totals)[h].to(options.dtype()))
                                         : own_mean(head, options, keeps ? &kept : nullptr);
    loss.add_(detail::divided((mean.log_p.exp() * mean.log_p).sum(), heads));
    if (!wanted[0] && !wanted[1]) continue;
    const auto grad_x = wanted[0] ? grads.x[h] : at::Tensor();
    auto grad_codes = wanted[1] ? at::zeros(codebook[h].sizes(), options) : at::Tensor();
    auto weight = (mean.tokens.clamp_min(1) * heads).reciprocal() * temperature;
    if (mean.ranks.defined()) weight = weight * mean.ranks;
    head.backward(mean.log_p, weight, std::move(kept), grad_x, grad_codes);
    if (wanted[1]) {
      // Without a token, codes that are not finite have a zero gradient, too.
      const auto grad = scores.codes_gradient(grad_codes);
      grads.codebook[h].copy_(grad.masked_fill(head_counted.any().logical_not(), 0));
    }
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
