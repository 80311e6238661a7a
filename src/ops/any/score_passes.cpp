#include "ops/any/score_passes.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu/score_rows.h"

namespace torchvq::detail {
namespace {

constexpr int64_t kScoresPerTask = 16384;
// Totals are those of this many parts of a block, for any number of threads.
constexpr int64_t kParts = 8;

/// Whether loops may read and write the memory of these tensors.
bool in_memory(std::initializer_list<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kDouble && tensor.is_contiguous();
  });
}

kernels::ScoreRowsKernel kernel() { return kernels::score_rows_kernel(kernels::cpu_level()); }

/// body(row, position of its first score).
template <typename Body>
void over_rows(const at::Tensor& scores, const Body& body) {
  const int64_t size = scores.size(1);
  at::parallel_for(0, scores.size(0), 1 + kScoresPerTask / (size + 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) body(row, row * size);
                   });
}

const bool* rows_masked(const at::Tensor& masked) {
  return masked.defined() ? masked.const_data_ptr<bool>() : nullptr;
}

at::Tensor probabilities(const at::Tensor& scores, double temperature) {
  return (scores * temperature).softmax(-1);
}

/// Totals of rows [begin, end), which are added to `totals`.
void add_probabilities(const at::Tensor& scores, double temperature, const bool* masked,
                       int64_t begin, int64_t end, double* totals) {
  const int64_t size = scores.size(1);
  const auto rows = kernel();
  std::vector<double> p(static_cast<size_t>(size));
  for (int64_t row = begin; row < end; ++row) {
    if (masked != nullptr && masked[row]) continue;
    rows.probabilities(scores.const_data_ptr<double>() + row * size, temperature, size, p.data());
    rows.add(p.data(), size, totals);
  }
}

}  // namespace

void negative_distances_(at::Tensor& products, const at::Tensor& codes, const at::Tensor& tokens,
                         double noise) {
  if (!in_memory({products, codes, tokens})) {
    const auto lengths = codes + tokens;
    products.mul_(-2).add_(lengths);
    products.masked_fill_(products.le(lengths * noise), 0);
    products.sqrt_().neg_();
    return;
  }
  const auto *of_code = codes.const_data_ptr<double>(), *of_token = tokens.const_data_ptr<double>();
  auto* all = products.mutable_data_ptr<double>();
  const auto rows = kernel();
  over_rows(products, [&](int64_t row, int64_t place) {
    rows.negative_distances({of_code, of_token[row], noise}, products.size(1), all + place);
  });
}

void divide_by_scores_(at::Tensor& grad, const at::Tensor& scores) {
  if (!in_memory({grad, scores})) {
    grad.div_(scores).masked_fill_(scores.eq(0), 0);
    return;
  }
  const auto* from = scores.const_data_ptr<double>();
  auto* all = grad.mutable_data_ptr<double>();
  const auto rows = kernel();
  over_rows(grad, [&](int64_t /*row*/, int64_t place) {
    rows.divide(from + place, grad.size(1), all + place);
  });
}

at::Tensor probability_totals(const at::Tensor& scores, double temperature,
                              const at::Tensor& masked) {
  if (!in_memory({scores})) {
    auto p = probabilities(scores, temperature);
    if (masked.defined()) p.masked_fill_(masked, 0);
    return p.sum(0);
  }
  const int64_t count = scores.size(0), part = (count + kParts - 1) / kParts;
  auto totals = at::zeros({kParts, scores.size(1)}, scores.options());
  auto* all = totals.mutable_data_ptr<double>();
  const bool* const is_masked = rows_masked(masked);
  at::parallel_for(0, kParts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      add_probabilities(scores, temperature, is_masked, std::min(i * part, count),
                        std::min((i + 1) * part, count), all + i * scores.size(1));
    }
  });
  return totals.sum(0);
}

at::Tensor diversity_slopes(const at::Tensor& scores, double temperature,
                            const at::Tensor& log_mean, const at::Tensor& weight,
                            const at::Tensor& masked) {
  if (!in_memory({scores, log_mean, weight})) {
    auto p = probabilities(scores, temperature);
    const auto mean = (p * log_mean).sum(-1, /*keepdim=*/true);
    p.mul_(log_mean - mean).mul_(weight);
    return masked.defined() ? p.masked_fill_(masked, 0) : p;
  }
  auto slopes = at::empty_like(scores);
  const auto *from = scores.const_data_ptr<double>(), *of_code = log_mean.const_data_ptr<double>();
  const double factor = *weight.const_data_ptr<double>();
  auto* all = slopes.mutable_data_ptr<double>();
  const bool* const is_masked = rows_masked(masked);
  const int64_t size = scores.size(1);
  const auto rows = kernel();
  over_rows(scores, [&](int64_t row, int64_t place) {
    double* const own = all + place;
    if (is_masked != nullptr && is_masked[row]) {
      std::fill(own, own + size, 0.0);
      return;
    }
    rows.probabilities(from + place, temperature, size, own);
    rows.diversity_slopes(of_code, factor, size, own);
  });
  return slopes;
}

}  // namespace torchvq::detail
