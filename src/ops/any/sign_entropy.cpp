// Any device: plain ATen, the reference for the CPU kernel, which falls back to it for float64.
#include "ops/sign_entropy.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/product_dtype.h"

namespace torchvq {
namespace {

constexpr int64_t kTokensAtOnce = 1024;
/// Probabilities allocated at a time for each half of a group, on devices
/// that prefer long launches.
constexpr int64_t kDeviceValues = int64_t{1} << 25;
using detail::precise_mm;
using detail::SignGroup;

struct Bits {
  at::Tensor on, off, entropy, slope;  ///< (n, D)
  at::Tensor off_on;                   ///< (n, D, 2)

  Bits(const at::Tensor& x, double sharpness) {
    const auto z = x * sharpness;
    const auto size = z.abs().clamp_max(x.scalar_type() == at::kDouble ? 700.0 : 87.0);
    const auto e = (-size).exp();
    const auto likely = (e + 1).reciprocal();
    const auto unlikely = e * likely;
    const auto set = z > 0;
    on = at::where(set, likely, unlikely);
    off = at::where(set, unlikely, likely);
    entropy = e.log1p() + size * unlikely;
    slope = at::where(set, -size, size) * (likely * unlikely);
    off_on = at::stack({off, on}, -1);
  }
};

/// The probabilities of all values of the last k bits, for k = 0 ... number of bits.
std::vector<at::Tensor> pyramid(const Bits& bits, int64_t first, int64_t count) {
  std::vector<at::Tensor> levels{at::ones({bits.on.size(0), 1}, bits.on.options())};
  for (int64_t bit = first + count - 1; bit >= first; --bit) {
    const auto pair = bits.off_on.select(1, bit).unsqueeze(-1);
    levels.push_back((levels.back().unsqueeze(1) * pair).flatten(1));
  }
  return levels;
}

/// The tokens of a head in the dtype of the entropies. Padding is set to zero and has no weight:
/// removing it would need its count on the host, and so a wait for the device.
struct HeadTokens {
  HeadTokens(const at::Tensor& x, const std::optional<at::Tensor>& mask, int64_t head)
      : values(x.select(0, head).to(detail::value_dtype(x, x))) {
    if (!mask.has_value()) return;
    row_mask = (mask->dim() == 2 ? mask->select(0, head) : *mask).unsqueeze(-1);
    values = values.masked_fill(row_mask.logical_not(), 0);
  }

  /// Sets padding to zero, from token `begin` on.
  at::Tensor without_padding(const at::Tensor& rows, int64_t begin) const {
    if (!row_mask.defined()) return rows;
    return rows.masked_fill(row_mask.narrow(0, begin, rows.size(0)).logical_not(), 0);
  }

  void count_to(const at::Tensor& total) const {
    if (row_mask.defined()) {
      total.copy_(row_mask.sum());
    } else {
      total.fill_(values.size(0));
    }
  }

  at::Tensor values;    ///< (N, D)
  at::Tensor row_mask;  ///< (N, 1) bool, undefined if all tokens are real
};

/// Tokens whose distributions are allocated at a time.
int64_t tokens_at_once(const at::Tensor& tokens) {
  if (tokens.is_cpu()) return kTokensAtOnce;
  const auto group = detail::sign_groups(tokens.size(1))[0];
  return std::max(kTokensAtOnce, kDeviceValues >> std::max(group.high, group.low()));
}

template <typename Body>
void over_chunks(const at::Tensor& tokens, const Body& body) {
  const int64_t step = tokens_at_once(tokens);
  for (int64_t begin = 0; begin < tokens.size(0); begin += step) {
    body(begin, std::min(step, tokens.size(0) - begin));
  }
}

/// Gradient of the logits of a half's bits: of the mean of `values` (n, 2^count).
std::vector<at::Tensor> fold(const Bits& bits, const std::vector<at::Tensor>& levels, int64_t first,
                             at::Tensor values) {
  std::vector<at::Tensor> grads;
  const auto count = static_cast<int64_t>(levels.size()) - 1;
  for (int64_t bit = first; bit < first + count; ++bit) {
    const int64_t half = values.size(1) / 2;
    const auto lower = values.narrow(1, 0, half), upper = values.narrow(1, half, half);
    const auto on = bits.on.select(1, bit), off = bits.off.select(1, bit);
    const auto& rest = levels[static_cast<size_t>(count - 1 - (bit - first))];
    grads.push_back(on * off * (rest * (upper - lower)).sum(1));
    values = lower * off.unsqueeze(1) + upper * on.unsqueeze(1);
  }
  return grads;
}

/// log P minus its mean under P (2^high, 2^low), and the entropy of P.
std::pair<at::Tensor, at::Tensor> centred_logarithm(const at::Tensor& sums, const at::Tensor& count,
                                                    const SignGroup& group) {
  const auto mean = sums / count;
  const double smallest = mean.scalar_type() == at::kDouble
                              ? std::numeric_limits<double>::min()
                              : static_cast<double>(std::numeric_limits<float>::min());
  const auto logarithm = mean.clamp_min(smallest).log();
  const auto entropy = -(mean * logarithm).sum(at::IntArrayRef{}, false, detail::sum_dtype(mean));
  const int64_t rows = int64_t{1} << group.high;
  return {(logarithm + entropy.to(logarithm)).view({rows, -1}), entropy.to(logarithm)};
}

struct EntropyHead {
  at::Tensor per_sample, batch, grad_per_sample, grad_batch;
};

void add_gradients(const HeadTokens& tokens, double sharpness, const at::Tensor& weight,
                   const std::vector<SignGroup>& groups, const std::vector<at::Tensor>& logarithms,
                   EntropyHead& head) {
  over_chunks(tokens.values, [&](int64_t begin, int64_t length) {
    const Bits bits(tokens.values.narrow(0, begin, length), sharpness);
    std::vector<at::Tensor> grads;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto& group = groups[g];
      const auto a = pyramid(bits, group.first, group.high);
      const auto b = pyramid(bits, group.first + group.high, group.low());
      const auto from_high = fold(bits, a, group.first, precise_mm(b.back(), logarithms[g].t()));
      const auto from_low =
          fold(bits, b, group.first + group.high, precise_mm(a.back(), logarithms[g]));
      grads.insert(grads.end(), from_high.begin(), from_high.end());
      grads.insert(grads.end(), from_low.begin(), from_low.end());
    }
    const auto of_batch = tokens.without_padding(at::stack(grads, 1) * -weight, begin);
    head.grad_batch.narrow(0, begin, length).copy_(of_batch);
    head.grad_per_sample.narrow(0, begin, length)
        .copy_(tokens.without_padding(bits.slope * weight, begin));
  });
}

EntropyHead one_head(const HeadTokens& tokens, double sharpness, const at::Tensor& totals,
                     int64_t heads, bool wanted) {
  const int64_t dim = tokens.values.size(1), codes = totals.size(0) - 3;
  const auto groups = detail::sign_groups(dim);
  const auto count = totals.select(0, codes + 1);
  const auto live = count > 0;
  const auto divisor = count.clamp_min(1);
  EntropyHead head;
  head.per_sample = totals.select(0, codes) / divisor;
  head.batch = at::zeros({}, totals.options());
  std::vector<at::Tensor> logarithms;
  for (const auto& group : groups) {
    auto [logarithm, entropy] =
        centred_logarithm(totals.narrow(0, group.offset, group.size()), divisor, group);
    head.batch = head.batch + entropy;
    logarithms.push_back(std::move(logarithm));
  }
  head.batch = at::where(live, head.batch, 0.0);
  if (wanted) {
    head.grad_per_sample = at::zeros_like(tokens.values);
    head.grad_batch = at::zeros_like(tokens.values);
    const auto weight =
        totals.select(0, codes + 2) * (sharpness / static_cast<double>(heads)) / divisor;
    add_gradients(tokens, sharpness, weight, groups, logarithms, head);
  }
  return head;
}

}  // namespace

at::Tensor detail::sign_entropy_totals_any(const at::Tensor& x, double sharpness,
                                           const std::optional<at::Tensor>& mask) {
  check_sign_entropy(x, sharpness, mask);
  const int64_t size = sign_totals_size(x.size(2));
  const auto options = x.options().dtype(value_dtype(x, x));
  auto totals = at::zeros({x.size(0), size}, options);
  for (int64_t h = 0; h < x.size(0); ++h) {
    const HeadTokens tokens(x, mask, h);
    const auto row = totals.select(0, h);
    auto entropy = at::zeros({}, options.dtype(sum_dtype(x)));
    over_chunks(tokens.values, [&](int64_t begin, int64_t length) {
      const Bits bits(tokens.values.narrow(0, begin, length), sharpness);
      entropy +=
          tokens.without_padding(bits.entropy, begin).sum(at::IntArrayRef{}, false, sum_dtype(x));
      for (const auto& group : sign_groups(x.size(2))) {
        const auto all = pyramid(bits, group.first, group.high).back();
        const auto a = tokens.without_padding(all, begin);
        const auto b = pyramid(bits, group.first + group.high, group.low()).back();
        row.narrow(0, group.offset, group.size()).add_(precise_mm(a.t(), b).flatten());
      }
    });
    row.select(0, size - 3).copy_(entropy);
    tokens.count_to(row.select(0, size - 2));
    row.select(0, size - 1).fill_(1);
  }
  return totals;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> detail::sign_entropy_forward_any(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals_, bool wanted) {
  check_sign_entropy(x, sharpness, mask, totals_);
  const auto totals = totals_.has_value() ? *totals_ : sign_entropy_totals_any(x, sharpness, mask);
  const int64_t heads = x.size(0);
  auto per_sample = at::zeros({}, totals.options()), batch = at::zeros({}, totals.options());
  const auto shape = wanted ? x.sizes().vec() : std::vector<int64_t>{0};
  auto grad_per_sample = at::zeros(shape, totals.options());
  auto grad_batch = at::zeros(shape, totals.options());
  for (int64_t h = 0; h < heads; ++h) {
    const auto head =
        one_head(HeadTokens(x, mask, h), sharpness, totals.select(0, h), heads, wanted);
    per_sample += divided(head.per_sample, static_cast<double>(heads));
    batch += divided(head.batch, static_cast<double>(heads));
    if (!wanted) continue;
    grad_per_sample.select(0, h).copy_(head.grad_per_sample);
    grad_batch.select(0, h).copy_(head.grad_batch);
  }
  return {per_sample, batch, grad_per_sample, grad_batch};
}

namespace {

std::tuple<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals) {
  const auto found = detail::sign_entropy_forward_any(x, sharpness, mask, totals, false);
  return {std::get<0>(found), std::get<1>(found)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sign_entropy", sign_entropy);
  m.impl("sign_entropy_totals", detail::sign_entropy_totals_any);
  m.impl("sign_entropy_forward", detail::sign_entropy_forward_any);
}

}  // namespace torchvq
