#include "ops/token_moments.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Blocks, and so the order of additions, do not depend on the number of threads.
constexpr int64_t kMomentTokensPerBlock = 1024;

/// Sums `width` numbers over the tokens; body(token, sums) adds one token.
template <typename Body>
std::vector<double> add_up(int64_t tokens, const bool* mask, int64_t width, const Body& body) {
  const int64_t blocks = (tokens + kMomentTokensPerBlock - 1) / kMomentTokensPerBlock;
  std::vector<double> parts(static_cast<size_t>(blocks * width));
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      for (int64_t i = b * kMomentTokensPerBlock;
           i < std::min(tokens, (b + 1) * kMomentTokensPerBlock); ++i) {
        if (mask == nullptr || mask[i]) body(i, parts.data() + b * width);
      }
    }
  });
  std::vector<double> total(static_cast<size_t>(width));
  for (size_t at = 0; at < parts.size(); ++at) total[at % total.size()] += parts[at];
  return total;
}

template <typename T>
void fill_moments(const at::Tensor& x, const bool* mask, double* to) {
  const int64_t dim = x.size(-1), tokens = dim == 0 ? 0 : x.numel() / dim;
  const T* from = x.const_data_ptr<T>();
  to[0] = static_cast<double>(mask == nullptr ? tokens : std::count(mask, mask + tokens, true));
  double* mean = to + 1;
  const auto sums = add_up(tokens, mask, dim, [&](int64_t i, double* sum) {
    for (int64_t j = 0; j < dim; ++j) sum[j] += static_cast<double>(from[i * dim + j]);
  });
  for (int64_t j = 0; j < dim; ++j) mean[j] = sums[static_cast<size_t>(j)] / std::max(to[0], 1.0);
  const auto powers = add_up(tokens, mask, 3 * dim, [&](int64_t i, double* sum) {
    for (int64_t j = 0; j < dim; ++j) {
      const double rest = static_cast<double>(from[i * dim + j]) - mean[j], square = rest * rest;
      sum[j] += square;
      sum[dim + j] += square * rest;
      sum[2 * dim + j] += square * square;
    }
  });
  std::copy(powers.begin(), powers.end(), mean + dim);
}

at::Tensor token_moments(const at::Tensor& x_, const OptionalTensor& mask_) {
  detail::check_token_moments(x_, mask_);
  const bool wide = x_.scalar_type() == at::kDouble;
  const auto x = x_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  auto moments = at::zeros({1 + 4 * x.size(-1)}, x.options().dtype(at::kDouble));
  (wide ? fill_moments<double> : fill_moments<float>)(x, mask_data,
                                                      moments.mutable_data_ptr<double>());
  return moments;
}

/// The slope at x is a polynomial in x - mean, with four coefficients per feature.
struct MomentSlopes {
  MomentSlopes(const double* grad, const double* moments, int64_t dim_)
      : dim(dim_), mean(moments + 1), coefficients(static_cast<size_t>(4 * dim_)) {
    const double count = std::max(moments[0], 1.0);
    for (int64_t j = 0; j < dim; ++j) {
      const auto part = [&](const double* of, int64_t k) { return of[1 + k * dim + j]; };
      double* own = coefficients.data() + 4 * j;
      own[0] = (part(grad, 0) - 3 * part(grad, 2) * part(moments, 1) -
                4 * part(grad, 3) * part(moments, 2)) /
               count;
      for (int64_t k = 1; k < 4; ++k) own[k] = static_cast<double>(k + 1) * part(grad, k);
    }
  }

  double at(int64_t j, double x) const {
    const double* own = coefficients.data() + 4 * j;
    const double rest = x - mean[j];
    return own[0] + rest * (own[1] + rest * (own[2] + rest * own[3]));
  }

  int64_t dim;
  const double* mean;
  std::vector<double> coefficients;
};

template <typename T>
void fill_slopes(const at::Tensor& x, const bool* mask, const MomentSlopes& slopes,
                 at::Tensor& result) {
  const T* from = x.const_data_ptr<T>();
  T* to = result.mutable_data_ptr<T>();
  const int64_t dim = slopes.dim, tokens = dim == 0 ? 0 : x.numel() / dim;
  at::parallel_for(0, tokens, kMomentTokensPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool real = mask == nullptr || mask[i];
      for (int64_t j = 0; j < dim; ++j) {
        const int64_t at = i * dim + j;
        to[at] = real ? static_cast<T>(slopes.at(j, static_cast<double>(from[at]))) : T(0);
      }
    }
  });
}

at::Tensor token_moments_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                  const at::Tensor& moments_, const OptionalTensor& mask_) {
  detail::check_token_moments_backward(grad_, x_, moments_, mask_);
  const bool wide = x_.scalar_type() == at::kDouble;
  const auto x = x_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto moments = moments_.contiguous();
  const auto grad = grad_.to(at::kDouble).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  auto result = at::empty(x.sizes(), x.options());
  const MomentSlopes slopes(grad.const_data_ptr<double>(), moments.const_data_ptr<double>(),
                            x.size(-1));
  (wide ? fill_slopes<double> : fill_slopes<float>)(x, mask_data, slopes, result);
  return result.to(x_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("token_moments", token_moments);
  m.impl("token_moments_backward", token_moments_backward);
}

}  // namespace torchvq
