#include "ops/any/score_passes.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "detail/precision.h"
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
    rows.add_probabilities(p.data(), size, totals);
  }
}

/// Whether loops may read the rows and write float64.
bool reads_floats(const at::Tensor& rows) {
  return rows.is_cpu() && rows.scalar_type() == at::kFloat && rows.is_contiguous() &&
         rows.size(0) > 0;
}

/// body(part, its first row, its end): the same parts for any number of threads.
template <typename Body>
void over_parts(int64_t rows, const Body& body) {
  const int64_t part = (rows + kParts - 1) / kParts;
  at::parallel_for(0, kParts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      body(i, std::min(i * part, rows), std::min((i + 1) * part, rows));
    }
  });
}

}  // namespace

at::Tensor mean_row(const at::Tensor& rows) {
  const auto dtype = sum_dtype(rows);
  if (!reads_floats(rows) || dtype != at::kDouble) {
    return rows.to(dtype).mean(0, /*keepdim=*/true);
  }
  const int64_t dim = rows.size(1);
  auto totals = at::zeros({kParts, dim}, rows.options().dtype(dtype));
  const auto* from = rows.const_data_ptr<float>();
  auto* all = totals.mutable_data_ptr<double>();
  const auto add = kernel().add_features;
  over_parts(rows.size(0), [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) add(from + row * dim, dim, all + part * dim);
  });
  return totals.sum(0, /*keepdim=*/true).div_(static_cast<double>(rows.size(0)));
}

CentredRows centred_rows(const at::Tensor& rows, const at::Tensor& centre) {
  if (!reads_floats(rows) || !in_memory({centre})) {
    auto centred = rows.to(centre.scalar_type()) - centre;
    auto squares = squared_norms(centred);
    return {std::move(centred), std::move(squares)};
  }
  auto centred = at::empty(rows.sizes(), centre.options());
  auto squares = at::empty({rows.size(0), 1}, centre.options());
  const auto* from = rows.const_data_ptr<float>();
  const auto* middle = centre.const_data_ptr<double>();
  auto *to = centred.mutable_data_ptr<double>(), *own = squares.mutable_data_ptr<double>();
  const auto subtract = kernel().subtract;
  over_rows(rows, [&](int64_t row, int64_t place) {
    own[row] = subtract(from + place, middle, rows.size(1), to + place);
  });
  return {std::move(centred), std::move(squares)};
}

at::Tensor squared_norms(const at::Tensor& rows) {
  constexpr int64_t kPart = int64_t{1} << 15;
  if (!rows.is_cpu() || rows.numel() <= kPart) return rows.square().sum(-1, /*keepdim=*/true);
  const auto flat = rows.flatten(0, -2);
  auto norms = at::empty({flat.size(0), 1}, rows.options());
  const int64_t step = std::max<int64_t>(1, kPart / flat.size(1));
  for (int64_t from = 0; from < flat.size(0); from += step) {
    const int64_t count = std::min(step, flat.size(0) - from);
    norms.narrow(0, from, count)
        .copy_(flat.narrow(0, from, count).square().sum(-1, /*keepdim=*/true));
  }
  auto shape = rows.sizes().vec();
  shape.back() = 1;
  return norms.view(shape);
}

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
  auto totals = at::zeros({kParts, scores.size(1)}, scores.options());
  auto* all = totals.mutable_data_ptr<double>();
  const bool* const is_masked = rows_masked(masked);
  over_parts(scores.size(0), [&](int64_t i, int64_t begin, int64_t end) {
    add_probabilities(scores, temperature, is_masked, begin, end, all + i * scores.size(1));
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

CrossEntropies cross_entropies(const at::Tensor& scores, const at::Tensor& targets,
                               const at::Tensor& counted, const at::Tensor& weight,
                               bool wants_slopes) {
  CrossEntropies found;
  if (!in_memory({scores, weight})) {
    const auto total = scores.logsumexp(-1, /*keepdim=*/true), absent = counted.logical_not();
    found.losses = (total - scores.gather(1, targets)).masked_fill_(absent, 0);
    if (!wants_slopes) return found;
    found.slopes = (scores - total).exp_();
    found.slopes.scatter_add_(1, targets, at::full_like(total, -1));
    found.slopes.mul_(weight).masked_fill_(absent, 0);
    return found;
  }
  const auto target_rows = targets.contiguous(), counted_rows = counted.contiguous();
  found.losses = at::zeros({scores.size(0), 1}, scores.options());
  if (wants_slopes) found.slopes = at::empty_like(scores);
  const auto* const from = scores.const_data_ptr<double>();
  const auto* const target = target_rows.const_data_ptr<int64_t>();
  const auto* const counts = counted_rows.const_data_ptr<bool>();
  auto* const losses = found.losses.mutable_data_ptr<double>();
  auto* const slopes = wants_slopes ? found.slopes.mutable_data_ptr<double>() : nullptr;
  const double factor = *weight.const_data_ptr<double>();
  const int64_t size = scores.size(1);
  const auto rows = kernel();
  over_rows(scores, [&](int64_t row, int64_t place) {
    double* const own = wants_slopes ? slopes + place : nullptr;
    if (counts[row]) {
      losses[row] = rows.cross_entropy(from + place, target[row], factor, size, own);
    } else if (wants_slopes) {
      std::fill_n(own, size, 0.0);
    }
  });
  return found;
}

}  // namespace torchvq::detail
