#include "ops/any/code_logits.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "detail/precision.h"
#include "ops/any/score_passes.h"

namespace torchvq::detail {
namespace {

constexpr double kNormFloor = 1e-12;

/// (n, 1). In memory by parts whose squares stay in the cache; each row is summed as in the whole.
at::Tensor squared_norms(const at::Tensor& rows) {
  constexpr int64_t kPart = int64_t{1} << 15;
  if (!rows.is_cpu() || rows.numel() <= kPart) return rows.square().sum(-1, /*keepdim=*/true);
  auto norms = at::empty({rows.size(0), 1}, rows.options());
  const int64_t step = std::max<int64_t>(1, kPart / rows.size(1));
  for (int64_t from = 0; from < rows.size(0); from += step) {
    const int64_t count = std::min(step, rows.size(0) - from);
    norms.narrow(0, from, count)
        .copy_(rows.narrow(0, from, count).square().sum(-1, /*keepdim=*/true));
  }
  return norms;
}

/// Squared distances below this multiple of the squared norms are rounding errors of the expansion.
double expansion_noise(const at::Tensor& rows) {
  return 8 * (rows.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                : std::numeric_limits<float>::epsilon());
}

}  // namespace

UnitRows unit_rows_and_norms(const at::Tensor& rows) {
  const auto norms = squared_norms(rows).sqrt_();
  return {rows / norms.clamp_min(kNormFloor), norms};
}

at::Tensor unit_rows_backward(const at::Tensor& grad, const UnitRows& unit) {
  auto along = (grad * unit.rows).sum(-1, /*keepdim=*/true);
  along.masked_fill_(unit.norms.le(kNormFloor), 0);
  return (grad - unit.rows * along) / unit.norms.clamp_min(kNormFloor);
}

int64_t tokens_per_block(const at::Tensor& codebook) {
  const int64_t budget = codebook.is_cpu() ? int64_t{1} << 19 : int64_t{1} << 24;
  return std::max<int64_t>(16, budget / codebook.size(-2));
}

CodeLogits::CodeLogits(const at::Tensor& codebook, Metric metric) : metric_(metric) {
  codes_ = codebook.to(sum_dtype(codebook));
  if (metric_ == Metric::kCosine) {
    norms_ = squared_norms(codes_).sqrt_();
    const auto divisors = norms_.clamp_min(kNormFloor);
    codes_ = codes_.is_same(codebook) ? codes_.div(divisors) : codes_.div_(divisors);
  } else {
    centre_ = codes_.mean(0, /*keepdim=*/true);
    codes_ = codes_.is_same(codebook) ? codes_ - centre_ : codes_.sub_(centre_);
    norms_ = squared_norms(codes_).t();
  }
}

CodeLogits::Block CodeLogits::forward(const at::Tensor& x) const {
  const auto rows = x.to(codes_.scalar_type());
  if (metric_ == Metric::kCosine) {
    const auto unit = unit_rows_and_norms(rows);
    return {at::mm(unit.rows, codes_.t()), unit.rows, unit.norms};
  }
  const auto tokens = rows - centre_;
  const auto lengths = squared_norms(tokens);
  auto scores = at::mm(tokens, codes_.t());
  negative_distances_(scores, norms_, lengths, expansion_noise(tokens));
  return {scores, tokens, {}};
}

at::Tensor CodeLogits::backward(const Block& block, at::Tensor grad_logits,
                                at::Tensor& grad_codes) const {
  if (metric_ == Metric::kCosine) {
    if (grad_codes.defined()) grad_codes.addmm_(grad_logits.t(), block.tokens);
    return unit_rows_backward(at::mm(grad_logits, codes_), {block.tokens, block.norms});
  }
  // dl/dx = (x - c) / l; both sides have the same centre, so their
  // differences are those of x and c.
  divide_by_scores_(grad_logits, block.logits);
  const auto& pull = grad_logits;
  if (grad_codes.defined()) {
    grad_codes.addmm_(pull.t(), block.tokens, /*beta=*/1, /*alpha=*/-1);
    grad_codes.addcmul_(codes_, pull.sum(0).unsqueeze(-1));
  }
  return block.tokens * pull.sum(-1, /*keepdim=*/true) - at::mm(pull, codes_);
}

at::Tensor CodeLogits::codes_gradient(const at::Tensor& grad_codes) const {
  return metric_ == Metric::kCosine ? unit_rows_backward(grad_codes, {codes_, norms_}) : grad_codes;
}

}  // namespace torchvq::detail
