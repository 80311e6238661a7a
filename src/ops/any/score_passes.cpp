#include "ops/any/score_passes.h"

#include <cmath>
#include <initializer_list>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

namespace torchvq::detail {
namespace {

constexpr int64_t kScoresPerTask = 16384;

/// Whether loops may read and write the memory of these tensors.
bool in_memory(std::initializer_list<at::Tensor> tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.is_cpu() || tensor.scalar_type() != at::kDouble || !tensor.is_contiguous()) {
      return false;
    }
  }
  return true;
}

template <typename Body>
void over_score_rows(const at::Tensor& scores, const Body& body) {
  const int64_t size = scores.size(1);
  at::parallel_for(0, scores.size(0), 1 + kScoresPerTask / (size + 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) body(row, row * size, size);
                   });
}

}  // namespace

void negative_distances_(at::Tensor& squares, const at::Tensor& codes, const at::Tensor& tokens,
                         double noise) {
  if (!in_memory({squares, codes, tokens})) {
    squares.masked_fill_(squares.le((codes + tokens) * noise), 0);
    squares.sqrt_().neg_();
    return;
  }
  const auto *of_code = codes.const_data_ptr<double>(), *of_token = tokens.const_data_ptr<double>();
  auto* all = squares.mutable_data_ptr<double>();
  over_score_rows(squares, [&](int64_t row, int64_t place, int64_t size) {
    double* const own = all + place;
    const double length = of_token[row];
    for (int64_t k = 0; k < size; ++k) {
      const double square = own[k] <= (of_code[k] + length) * noise ? 0.0 : own[k];
      own[k] = -std::sqrt(square);
    }
  });
}

void divide_by_scores_(at::Tensor& grad, const at::Tensor& scores) {
  if (!in_memory({grad, scores})) {
    grad.div_(scores).masked_fill_(scores.eq(0), 0);
    return;
  }
  const auto* from = scores.const_data_ptr<double>();
  auto* all = grad.mutable_data_ptr<double>();
  over_score_rows(grad, [&](int64_t /*row*/, int64_t place, int64_t size) {
    for (int64_t i = place; i < place + size; ++i) all[i] = from[i] == 0 ? 0.0 : all[i] / from[i];
  });
}

void diversity_slopes_(at::Tensor& p, const at::Tensor& log_mean, const at::Tensor& mean,
                       const at::Tensor& weight, const at::Tensor& masked) {
  if (!in_memory({p, log_mean, mean, weight})) {
    p.mul_(log_mean - mean).mul_(weight);
    if (masked.defined()) p.masked_fill_(masked, 0);
    return;
  }
  const auto *of_code = log_mean.const_data_ptr<double>(), *own = mean.const_data_ptr<double>();
  const double factor = *weight.const_data_ptr<double>();
  auto* all = p.mutable_data_ptr<double>();
  over_score_rows(p, [&](int64_t row, int64_t place, int64_t size) {
    double* const to = all + place;
    for (int64_t k = 0; k < size; ++k) to[k] = to[k] * (of_code[k] - own[row]) * factor;
  });
  if (masked.defined()) p.masked_fill_(masked, 0);
}

}  // namespace torchvq::detail
