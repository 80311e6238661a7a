#include "ops/any/code_logits.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include "detail/precision.h"
#include "ops/any/score_passes.h"

namespace torchvq::detail {
namespace {

constexpr double kNormFloor = 1e-12;

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
  if (metric_ == Metric::kCosine) {
    codes_ = codebook.to(sum_dtype(codebook));
    norms_ = squared_norms(codes_).sqrt_();
    const auto divisors = norms_.clamp_min(kNormFloor);
    codes_ = codes_.is_same(codebook) ? codes_.div(divisors) : codes_.div_(divisors);
  } else {
    centre_ = mean_row(codebook);
    auto centred = centred_rows(codebook, centre_);
    codes_ = std::move(centred.rows);
    norms_ = centred.squares.t();
  }
}

CodeLogits::Block CodeLogits::forward(const at::Tensor& x) const {
  if (metric_ == Metric::kCosine) {
    const auto unit = unit_rows_and_norms(x.to(codes_.scalar_type()));
    return {at::mm(unit.rows, codes_.t()), unit.rows, unit.norms};
  }
  auto tokens = centred_rows(x, centre_);
  auto scores = at::mm(tokens.rows, codes_.t());
  negative_distances_(scores, norms_, tokens.squares, expansion_noise(tokens.rows));
  return {std::move(scores), std::move(tokens.rows), {}};
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
