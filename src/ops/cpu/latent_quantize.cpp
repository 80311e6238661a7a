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

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Blocks, and so the order of additions, do not depend on the number of threads.
constexpr int64_t kLatentsPerBlock = 1024;

int64_t count_blocks(int64_t tokens) { return (tokens + kLatentsPerBlock - 1) / kLatentsPerBlock; }

template <typename Body>
void over_blocks(int64_t tokens, const Body& body) {
  at::parallel_for(0, count_blocks(tokens), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      body(block, block * kLatentsPerBlock, std::min(tokens, (block + 1) * kLatentsPerBlock));
    }
  });
}

/// The lowest one wins ties; a NaN is never the nearest.
int64_t nearest_level(const double* values, int64_t count, double x) {
  int64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    const double distance = std::fabs(x - values[i]);
    best = distance < least ? i : best;
    least = distance < least ? distance : least;
  }
  return best;
}

/// The features of a token; the values of all their levels are concatenated.
struct LatentLevels {
  explicit LatentLevels(at::IntArrayRef levels_)
      : levels(levels_.vec()), basis(detail::scalar_basis(levels_)) {}

  /// Writes the codes of one token; returns its index and adds to `squares`.
  template <typename T>
  int64_t token(const T* x, const double* values, T* codes, double& squares) const {
    int64_t index = 0;
    bool finite = true;
    const double* own = values;
    for (size_t j = 0; j < levels.size(); ++j) {
      const auto value = static_cast<double>(x[j]);
      finite = finite && std::isfinite(value);
      const int64_t level = nearest_level(own, levels[j], value);
      codes[j] = static_cast<T>(own[level]);
      const double rest = value - static_cast<double>(codes[j]);
      squares += rest * rest;
      index += level * basis[j];
      own += levels[j];
    }
    if (finite) return index;
    std::fill_n(codes, levels.size(), std::numeric_limits<T>::quiet_NaN());
    squares = std::numeric_limits<double>::quiet_NaN();
    return 0;
  }

  std::vector<int64_t> levels, basis;
};

/// Returns the sum of squared differences over real tokens, and their number.
template <typename T>
std::pair<double, int64_t> quantize_tokens(const at::Tensor& x, const double* values,
                                           const LatentLevels& features, const bool* mask,
                                           at::Tensor& codes, at::Tensor& indices) {
  const int64_t tokens = indices.numel();
  const auto dim = static_cast<int64_t>(features.levels.size());
  const T* from = x.const_data_ptr<T>();
  T* to = codes.mutable_data_ptr<T>();
  auto* index = indices.mutable_data_ptr<int64_t>();
  std::vector<double> squares(static_cast<size_t>(count_blocks(tokens)));
  std::vector<int64_t> counts(squares.size());
  over_blocks(tokens, [&](int64_t block, int64_t begin, int64_t end) {
    const auto b = static_cast<size_t>(block);
    for (int64_t i = begin; i < end; ++i) {
      if (mask != nullptr && !mask[i]) {
        std::fill_n(to + i * dim, dim, T(0));
        index[i] = -1;
        continue;
      }
      index[i] = features.token(from + i * dim, values, to + i * dim, squares[b]);
      ++counts[b];
    }
  });
  std::pair<double, int64_t> total{0, 0};
  for (size_t b = 0; b < squares.size(); ++b) {
    total.first += squares[b];
    total.second += counts[b];
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
  const auto run =
      x.scalar_type() == at::kDouble ? quantize_tokens<double> : quantize_tokens<float>;
  const auto [squares, tokens] =
      run(x, values.const_data_ptr<double>(), LatentLevels(levels), mask_data, codes, indices);
  const auto number = static_cast<double>(std::max<int64_t>(tokens * x.size(-1), 1));
  return {codes, indices,
          detail::rounded_scalar(squares / number * (commitment + quantization), x)};
}

/// Factors of the differences in backward.
struct LatentSlopes {
  double to_x, to_values;
};

template <typename T>
struct Backward {
  const T *straight, *x, *codes;
  const int64_t* indices;
  LatentSlopes slopes;
  T* grad_x;

  /// Processes one token and adds to the sums of differences per value. `Index` must hold every
  /// index; it may be 32 bits, because 64-bit divisions take several times as long.
  template <typename Index>
  void token(int64_t i, const std::vector<int64_t>& levels, double* sums) const {
    const auto dim = static_cast<int64_t>(levels.size());
    if (indices[i] < 0) {
      std::fill_n(grad_x + i * dim, dim, T(0));
      return;
    }
    auto index = static_cast<Index>(indices[i]);
    for (int64_t j = 0; j < dim; ++j) {
      const int64_t at = i * dim + j;
      const double rest = static_cast<double>(x[at]) - static_cast<double>(codes[at]);
      grad_x[at] = static_cast<T>(static_cast<double>(straight[at]) + slopes.to_x * rest);
      const auto count = static_cast<Index>(levels[static_cast<size_t>(j)]);
      if (std::isfinite(rest)) sums[index % count] += rest;
      index /= count;
      sums += count;
    }
  }
};

template <typename T>
void run_backward(const Backward<T>& backward, int64_t tokens, const std::vector<int64_t>& levels,
                  at::Tensor& grad_values) {
  const auto values = static_cast<size_t>(grad_values.numel());
  std::vector<double> sums(values * static_cast<size_t>(count_blocks(tokens)));
  const bool narrow = detail::scalar_basis(levels).back() * levels.back() <= INT32_MAX;
  over_blocks(tokens, [&](int64_t block, int64_t begin, int64_t end) {
    auto* own = sums.data() + values * static_cast<size_t>(block);
    for (int64_t i = begin; i < end; ++i) {
      narrow ? backward.template token<uint32_t>(i, levels, own)
             : backward.template token<uint64_t>(i, levels, own);
    }
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
    run_backward(backward, indices.numel(), levels.vec(), grad_values);
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
