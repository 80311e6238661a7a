#include "ops/latent_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "detail/scalar_levels.h"
#include "kernels/cpu/latent_quantize.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Blocks, and so the order of additions, do not depend on the number of threads.
constexpr int64_t kLatentsPerBlock = 1024;

/// Fewer are done sooner than another thread wakes up.
constexpr int64_t kValuesPerThread = 8192;

int64_t count_blocks(int64_t tokens) { return (tokens + kLatentsPerBlock - 1) / kLatentsPerBlock; }

template <typename Body>
void over_blocks(int64_t tokens, int64_t dim, const Body& body) {
  const int64_t grain = 1 + kValuesPerThread / (kLatentsPerBlock * dim);
  at::parallel_for(0, count_blocks(tokens), grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      body(block, block * kLatentsPerBlock, std::min(tokens, (block + 1) * kLatentsPerBlock));
    }
  });
}

/// Sums over real tokens.
struct LatentSum {
  double squares = 0;  // of the differences between latents and codes
  int64_t tokens = 0;
};

template <typename T>
struct Latents {
  const T* x;
  const double* values;  // of all features
  at::IntArrayRef levels, basis;
  const bool* mask;  // null if all tokens are real
  T* codes;
  int64_t* indices;
};

/// Quantizes some tokens at a time, feature by feature, so that the tokens of a feature are searched
/// together.
template <typename T>
class LatentQuantizer {
 public:
  explicit LatentQuantizer(const Latents<T>& latents)
      : all_(latents), kernel_(kernels::latent_quantize_kernel(kernels::cpu_level())) {}

  LatentSum quantize(int64_t begin, int64_t end) {
    LatentSum sum;
    for (int64_t i = begin; i < end; i += kTogether) some(i, std::min(kTogether, end - i), sum);
    return sum;
  }

 private:
  static constexpr int64_t kTogether = 16 * kernels::kLatentGroup;

  void some(int64_t from, int64_t count, LatentSum& sum) {
    const auto dim = std::ssize(all_.levels);
    std::fill_n(squares_, count, 0.0);
    std::fill_n(not_finite_, count, 0.0);
    std::fill_n(all_.indices + from, count, 0);
    const double* own = all_.values;
    for (size_t j = 0; j < all_.levels.size(); ++j) {
      feature(from * dim + static_cast<int64_t>(j), count, own, all_.levels[j]);
      for (int64_t t = 0; t < count; ++t) all_.indices[from + t] += places_[t] * all_.basis[j];
      own += all_.levels[j];
    }
    for (int64_t t = 0; t < count; ++t) {
      finish(from + t, squares_[t], std::isnan(not_finite_[t]), sum);
    }
  }

  /// One feature of `count` tokens, the first of which is at x[at].
  void feature(int64_t at, int64_t count, const double* own, int64_t size) {
    const auto dim = std::ssize(all_.levels);
    for (int64_t t = 0; t < count; ++t) numbers_[t] = static_cast<double>(all_.x[at + t * dim]);
    const int64_t groups = (count + kernels::kLatentGroup - 1) / kernels::kLatentGroup;
    kernel_.nearest(own, size, numbers_, groups * kernels::kLatentGroup, places_);
    for (int64_t t = 0; t < count; ++t) {
      const T code = static_cast<T>(own[places_[t]]);
      all_.codes[at + t * dim] = code;
      const double rest = numbers_[t] - static_cast<double>(code);
      squares_[t] += rest * rest;
      not_finite_[t] += numbers_[t] - numbers_[t];  // 0 or NaN
    }
  }

  void finish(int64_t token, double squares, bool absent, LatentSum& sum) {
    const auto dim = std::ssize(all_.levels);
    if (all_.mask != nullptr && !all_.mask[token]) {
      std::fill_n(all_.codes + token * dim, dim, T(0));
      all_.indices[token] = -1;
      return;
    }
    if (absent) {
      squares = std::numeric_limits<double>::quiet_NaN();
      std::fill_n(all_.codes + token * dim, dim, std::numeric_limits<T>::quiet_NaN());
      all_.indices[token] = 0;
    }
    sum.squares += squares;
    ++sum.tokens;
  }

  Latents<T> all_;
  kernels::LatentQuantizeKernel kernel_;
  double numbers_[kTogether] = {}, squares_[kTogether], not_finite_[kTogether];
  int64_t places_[kTogether];
};

template <typename T>
LatentSum quantize_tokens(const Latents<T>& latents, int64_t tokens) {
  std::vector<LatentSum> sums(static_cast<size_t>(count_blocks(tokens)));
  over_blocks(tokens, std::ssize(latents.levels), [&](int64_t block, int64_t begin, int64_t end) {
    sums[static_cast<size_t>(block)] = LatentQuantizer<T>(latents).quantize(begin, end);
  });
  LatentSum total;
  for (const auto& sum : sums) {
    total.squares += sum.squares;
    total.tokens += sum.tokens;
  }
  return total;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_quantize(
    const at::Tensor& x_, const at::Tensor& values_, at::IntArrayRef levels, double commitment,
    double quantization, const OptionalTensor& mask_) {
  detail::check_latent_quantize(x_, values_, levels, commitment, quantization, mask_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  const auto values = values_.to(at::kDouble).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  auto codes = at::empty(x.sizes(), x.options());
  auto indices =
      at::empty(x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)), x.options().dtype(at::kLong));
  const auto basis = detail::scalar_basis(levels);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const Latents<T> latents{
        x.const_data_ptr<T>(),       values.const_data_ptr<double>(),    levels, basis, mask_data,
        codes.mutable_data_ptr<T>(), indices.mutable_data_ptr<int64_t>()};
    return quantize_tokens(latents, indices.numel());
  };
  const auto [squares, tokens] = x.scalar_type() == at::kDouble ? run(0.0) : run(0.0F);
  const auto number = static_cast<double>(std::max<int64_t>(tokens * x.size(-1), 1));
  return {codes, indices,
          detail::rounded_scalar(squares / number * (commitment + quantization), x)};
}

/// Factors of the differences in backward.
struct LatentSlopes {
  double to_x, to_values;
};

/// Divides indices of tokens by a number of levels. A product with the reciprocal takes a fraction
/// of the time of a division of integers. It is exact below 2^50, because (index + 1/2) / levels is
/// never closer than 1 / (2 levels) to an integer.
struct LevelDivisor {
  explicit LevelDivisor(int64_t levels_)
      : levels(levels_), inverse(1.0 / static_cast<double>(levels_)) {}

  int64_t quotient(int64_t index) const {
    if (index >= int64_t{1} << 50) return index / levels;
    return static_cast<int64_t>((static_cast<double>(index) + 0.5) * inverse);
  }

  int64_t levels;
  double inverse;
};

template <typename T>
struct Backward {
  const T *straight, *x, *codes;
  const int64_t* indices;
  LatentSlopes slopes;
  T* grad_x;

  /// Processes one token and adds to the sums of differences per value.
  void token(int64_t i, const std::vector<LevelDivisor>& levels, double* sums) const {
    const auto dim = std::ssize(levels);
    if (indices[i] < 0) {
      std::fill_n(grad_x + i * dim, dim, T(0));
      return;
    }
    int64_t index = indices[i];
    for (int64_t j = 0; j < dim; ++j) {
      const int64_t at = i * dim + j;
      const double rest = static_cast<double>(x[at]) - static_cast<double>(codes[at]);
      grad_x[at] = static_cast<T>(static_cast<double>(straight[at]) + slopes.to_x * rest);
      const auto& divisor = levels[static_cast<size_t>(j)];
      const int64_t left = divisor.quotient(index);
      if (std::isfinite(rest)) sums[index - left * divisor.levels] += rest;
      index = left;
      sums += divisor.levels;
    }
  }
};

template <typename T>
void run_backward(const Backward<T>& backward, int64_t tokens, at::IntArrayRef levels,
                  at::Tensor& grad_values) {
  const auto values = static_cast<size_t>(grad_values.numel());
  const std::vector<LevelDivisor> divisors(levels.begin(), levels.end());
  std::vector<double> sums(values * static_cast<size_t>(count_blocks(tokens)));
  over_blocks(tokens, std::ssize(levels), [&](int64_t block, int64_t begin, int64_t end) {
    auto* own = sums.data() + values * static_cast<size_t>(block);
    for (int64_t i = begin; i < end; ++i) backward.token(i, divisors, own);
  });
  T* to = grad_values.mutable_data_ptr<T>();
  for (size_t v = 0; v < values; ++v) {
    double total = 0;
    for (size_t at = v; at < sums.size(); at += values) total += sums[at];
    to[v] = static_cast<T>(total * backward.slopes.to_values);
  }
}

std::tuple<at::Tensor, at::Tensor> latent_quantize_backward(
    const at::Tensor& grad_codes, const at::Tensor& grad_loss, const at::Tensor& x_,
    const at::Tensor& codes_, const at::Tensor& indices_, at::IntArrayRef levels, double commitment,
    double quantization) {
  detail::check_latent_quantize_backward(grad_codes, grad_loss, x_, codes_, indices_, levels);
  const auto dtype = detail::compute_dtype(x_);
  const auto x = x_.to(dtype).contiguous(), codes = codes_.contiguous();
  const auto straight = grad_codes.to(dtype).contiguous(), indices = indices_.contiguous();
  auto grad_x = at::empty(x.sizes(), x.options());
  auto grad_values = at::empty({detail::count_values(levels)}, codes.options());
  const auto* index = indices.const_data_ptr<int64_t>();
  const auto padding = std::count(index, index + indices.numel(), -1);
  const auto number = std::max<int64_t>((indices.numel() - padding) * x.size(-1), 1);
  const double scale = grad_loss.item<double>() * 2 / static_cast<double>(number);
  const LatentSlopes slopes{scale * commitment, scale * -quantization};
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const Backward<T> backward{straight.const_data_ptr<T>(),
                               x.const_data_ptr<T>(),
                               codes.const_data_ptr<T>(),
                               index,
                               slopes,
                               grad_x.mutable_data_ptr<T>()};
    run_backward(backward, indices.numel(), levels, grad_values);
  };
  dtype == at::kDouble ? run(0.0) : run(0.0F);
  return {grad_x.to(x_.scalar_type()), grad_values};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("latent_quantize", latent_quantize);
  m.impl("latent_quantize_backward", latent_quantize_backward);
}

}  // namespace torchvq
