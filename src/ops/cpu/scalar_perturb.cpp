#include "ops/scalar_perturb.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "detail/kept_values.h"
#include "detail/precision.h"
#include "detail/scalar_levels.h"
#include "detail/token_mask.h"
#include "kernels/cpu/scalar_quantize.h"
#include "kernels/random.h"
#include "ops/cpu/scalar_patterns.h"

namespace torchvq {
namespace {

using detail::CodeForm;
using detail::Distribution;
using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kPerturbedPerTask = 4096;
const double kRoot12 = std::sqrt(12.0);

/// The random draws of one call; without them, everything is quantized.
struct Noise {
  uint64_t move, choose;
  double rate;

  bool quantizes(uint64_t position) const {
    return rate > 0 &&
           kernels::uniform_from_bits(kernels::random_bits(choose, position), 24) < rate;
  }
  double offset(uint64_t position) const {
    return kernels::uniform_from_bits(kernels::random_bits(move, position), 24) - 0.5;
  }
};

Noise make_noise(const at::Tensor& rng_, double rate) {
  const auto rng = rng_.contiguous();
  const auto* state = rng.const_data_ptr<int64_t>();
  const auto key = [&](uint64_t stream) {
    return kernels::random_key(static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]),
                               static_cast<uint64_t>(RandomPurpose::kNoise), stream);
  };
  return {key(0), key(1), rate};
}

/// Counts perturbed values, and those that were kept.
struct Tally {
  int64_t perturbed = 0, kept = 0;
};

/// The features of a token; codes are not those of the inverse.
template <typename T>
struct Perturbation {
  Perturbation(at::IntArrayRef levels, detail::PerturbKind kind_)
      : kind(kind_), basis(detail::scalar_basis(levels)) {
    constexpr double kNoEps = 0;  // of the inverse
    std::vector<std::vector<float>> changes;
    for (const int64_t count : levels) {
      features.push_back(detail::perturb_levels<T>(count, kind.cdf, kind.form, kNoEps));
      if constexpr (std::is_same_v<T, float>) changes.push_back(features.back()->changes);
    }
    if (!changes.empty() && detail::is_compared(levels)) patterns.emplace(changes);
  }

  /// Finds the levels of `count` values, the first of which is the first feature of a token.
  void find_levels(const T* x, int64_t count, int32_t* levels) const {
    if constexpr (std::is_same_v<T, float>) {
      if (patterns) {
        std::vector<float> codes(static_cast<size_t>(count));
        const auto kernel = kernels::scalar_quantize_kernel(kernels::cpu_level());
        return kernel.quantize(patterns->view(), x, count, codes.data(), levels);
      }
    }
    for (int64_t at = 0; at < count; ++at) {
      const auto& changes = features[static_cast<size_t>(at) % features.size()]->changes;
      levels[at] = static_cast<int32_t>(std::upper_bound(changes.begin(), changes.end(), x[at]) -
                                        changes.begin());
    }
  }

  T of_form(T u) const {
    if (kind.form == CodeForm::kAct) return u;
    return (u - static_cast<T>(0.5)) * static_cast<T>(kRoot12);
  }

  T perturbed(size_t j, T u, double offset, Tally& tally) const {
    const auto count = static_cast<double>(features[j]->codes.size());
    const T moved = u + static_cast<T>(offset / count);
    const bool inside = moved >= 0 && moved <= 1;
    ++tally.perturbed;
    tally.kept += inside ? 1 : 0;
    return of_form(inside ? moved : u);
  }

  /// Processes one token with levels `found`; returns its index.
  int64_t token(const T* x, const T* u, const int32_t* found, const Noise* noise, int64_t number,
                T* codes, int64_t* levels, Tally& tally) const {
    const auto dim = static_cast<int64_t>(features.size());
    if (!std::all_of(x, x + dim, [](T value) { return std::isfinite(value); })) {
      std::fill_n(codes, dim, std::numeric_limits<T>::quiet_NaN());
      std::fill_n(levels, dim, 0);
      return 0;
    }
    int64_t index = 0;
    for (int64_t j = 0; j < dim; ++j) {
      const auto f = static_cast<size_t>(j);
      const auto position = static_cast<uint64_t>(number * dim + j);
      levels[j] = found[j];
      index += levels[j] * basis[f];
      codes[j] = noise == nullptr || noise->quantizes(position)
                     ? features[f]->codes[static_cast<size_t>(levels[j])]
                     : perturbed(f, u[j], noise->offset(position), tally);
    }
    return index;
  }

  detail::PerturbKind kind;
  std::vector<int64_t> basis;
  std::vector<std::shared_ptr<const detail::PerturbLevels<T>>> features;
  std::optional<detail::ScalarPatternsStorage> patterns;
};

/// Kept, because building it costs more than perturbing some hundred tokens.
template <typename T>
std::shared_ptr<const Perturbation<T>> perturbation_of(at::IntArrayRef levels,
                                                       detail::PerturbKind kind) {
  using Key = std::tuple<std::vector<int64_t>, Distribution, CodeForm>;
  static detail::KeptValues<Key, Perturbation<T>> known;
  return known.get({levels.vec(), kind.cdf, kind.form},
                   [&] { return Perturbation<T>(levels, kind); });
}

/// The outputs, per feature and per token.
struct Outputs {
  at::Tensor codes, levels, indices;
};

template <typename T>
Tally perturb_tokens(const at::Tensor& x, const Perturbation<T>& perturbation, const Noise* noise,
                     const bool* mask, Outputs& outputs) {
  // The tensor library's vectorized functions are several times as fast as scalar ones.
  const auto acts = noise == nullptr ? x : detail::cumulative_any(perturbation.kind.cdf, x);
  const T* u = acts.template const_data_ptr<T>();
  const int64_t tokens = outputs.indices.numel(), dim = x.size(-1);
  const auto numbers = detail::token_numbers(mask, mask == nullptr ? 0 : tokens);
  const T* from = x.const_data_ptr<T>();
  T* codes = outputs.codes.mutable_data_ptr<T>();
  auto* levels = outputs.levels.mutable_data_ptr<int64_t>();
  auto* indices = outputs.indices.mutable_data_ptr<int64_t>();
  const int64_t block = kPerturbedPerTask / dim + 1, blocks = (tokens + block - 1) / block;
  std::vector<Tally> tallies(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    std::vector<int32_t> found(static_cast<size_t>(std::min(block, tokens) * dim));
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * block, end = std::min(tokens, begin + block);
      perturbation.find_levels(from + begin * dim, (end - begin) * dim, found.data());
      for (int64_t i = begin; i < end; ++i) {
        if (mask != nullptr && !mask[i]) {
          std::fill_n(codes + i * dim, dim, T(0));
          std::fill_n(levels + i * dim, dim, -1);
          indices[i] = -1;
          continue;
        }
        const int64_t number = mask == nullptr ? i : numbers[static_cast<size_t>(i)];
        indices[i] = perturbation.token(
            from + i * dim, u + i * dim, found.data() + (i - begin) * dim, noise, number,
            codes + i * dim, levels + i * dim, tallies[static_cast<size_t>(b)]);
      }
    }
  });
  Tally total;
  for (const auto& tally : tallies) {
    total.perturbed += tally.perturbed;
    total.kept += tally.kept;
  }
  return total;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> scalar_perturb(
    const at::Tensor& x_, at::IntArrayRef levels, const OptionalTensor& rng, double quantize_rate,
    std::string_view cdf, std::string_view form, double eps, const OptionalTensor& mask_) {
  const auto kind =
      detail::check_scalar_perturb(x_, levels, rng, quantize_rate, cdf, form, eps, mask_);
  if (kind.form == CodeForm::kInverse) {
    return detail::scalar_perturb_any(x_, levels, rng, quantize_rate, cdf, form, eps, mask_);
  }
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const auto whole = x.options().dtype(at::kLong);
  Outputs outputs{at::empty(x.sizes(), x.options()), at::empty(x.sizes(), whole),
                  at::empty(x.sizes().slice(0, static_cast<size_t>(x.dim() - 1)), whole)};
  std::optional<Noise> noise;
  if (rng && quantize_rate < 1) noise = make_noise(*rng, quantize_rate);
  const auto* drawn = noise ? &*noise : nullptr;
  const auto run = [&]<typename T>(const std::shared_ptr<const Perturbation<T>>& perturbation) {
    return perturb_tokens(x, *perturbation, drawn, mask_data, outputs);
  };
  const Tally tally = x.scalar_type() == at::kDouble ? run(perturbation_of<double>(levels, kind))
                                                     : run(perturbation_of<float>(levels, kind));
  const double acceptance =
      tally.perturbed == 0 ? 1.0
                           : static_cast<double>(tally.kept) / static_cast<double>(tally.perturbed);
  return {outputs.codes, outputs.levels, outputs.indices, detail::rounded_scalar(acceptance, x)};
}

/// exp(exponent(x)), by the tensor library's vectorized exponential.
template <typename T, typename Exponent>
at::Tensor exponential_of(const at::Tensor& x, const Exponent& exponent) {
  auto exponents = at::empty(x.sizes(), x.options());
  const T* from = x.const_data_ptr<T>();
  T* to = exponents.mutable_data_ptr<T>();
  at::parallel_for(0, x.numel(), kPerturbedPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) to[at] = exponent(from[at]);
  });
  return exponents.exp_();
}

/// The exponential in the density at x; of the Cauchy distribution, which has none, x.
template <typename T>
at::Tensor exponential(Distribution kind, const at::Tensor& x) {
  switch (kind) {
    case Distribution::kTanh:
      return exponential_of<T>(x, [](T value) { return std::fabs(value) * -2; });
    case Distribution::kNormal:
      return exponential_of<T>(x, [](T value) { return value * value / -2; });
    case Distribution::kCauchy:
      return x;
    default:
      return exponential_of<T>(x, [](T value) { return -std::fabs(value); });
  }
}

/// A separate loop per distribution, so that the compiler vectorizes it: density(e) is the slope at
/// x, where e is the result of exponential() for x.
template <typename T, typename Density>
void multiply_slopes(const at::Tensor& grad, const at::Tensor& exponentials,
                     const at::Tensor& indices, at::Tensor& result, const Density& density) {
  const int64_t dim = grad.size(-1);
  const T *slopes = grad.const_data_ptr<T>(), *from = exponentials.const_data_ptr<T>();
  const auto* index = indices.const_data_ptr<int64_t>();
  T* to = result.mutable_data_ptr<T>();
  at::parallel_for(0, indices.numel(), kPerturbedPerTask / dim + 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t at = begin * dim; at < end * dim; ++at)
                       to[at] = slopes[at] * density(from[at]);
                     for (int64_t i = begin; i < end; ++i) {
                       if (index[i] < 0) std::fill_n(to + i * dim, dim, T(0));
                     }
                   });
}

template <typename T>
void choose_slopes(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& indices,
                   detail::PerturbKind kind, at::Tensor& result) {
  const auto scale = static_cast<T>(kind.form == CodeForm::kUnit ? kRoot12 : 1.0);
  const auto run = [&](const auto& density) {
    multiply_slopes<T>(grad, exponential<T>(kind.cdf, x), indices, result, density);
  };
  if (kind.form == CodeForm::kInverse) {
    return multiply_slopes<T>(grad, x, indices, result, [](T) { return T(1); });
  }
  switch (kind.cdf) {
    case Distribution::kTanh:
      return run([=](T e) { return 2 * e / ((1 + e) * (1 + e)) * scale; });
    case Distribution::kSigmoid:
      return run([=](T e) { return e / ((1 + e) * (1 + e)) * scale; });
    case Distribution::kNormal:
      return run([=](T e) { return e * static_cast<T>(0.39894228040143267794L) * scale; });
    case Distribution::kLaplace:
      return run([=](T e) { return e / 2 * scale; });
    default:
      return run(
          [=](T x) { return static_cast<T>(0.31830988618379067154L) / (1 + x * x) * scale; });
  }
}

at::Tensor scalar_perturb_backward(const at::Tensor& grad, const at::Tensor& x_,
                                   const at::Tensor& indices_, std::string_view cdf,
                                   std::string_view form) {
  const auto kind = detail::check_scalar_perturb_backward(grad, x_, indices_, cdf, form);
  const auto dtype = detail::compute_dtype(x_);
  const auto x = x_.to(dtype).contiguous(), indices = indices_.contiguous();
  auto result = at::empty(x.sizes(), x.options());
  const auto run = dtype == at::kDouble ? choose_slopes<double> : choose_slopes<float>;
  run(grad.to(dtype).contiguous(), x, indices, kind, result);
  return result.to(x_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("scalar_perturb", scalar_perturb);
  m.impl("scalar_perturb_backward", scalar_perturb_backward);
}

}  // namespace torchvq
