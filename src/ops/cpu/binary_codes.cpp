#include "ops/binary_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "detail/token_mask.h"
#include "kernels/random.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kBitsPerTask = 4096;
constexpr int64_t kCodesPerTask = 32768;
// A probability from the C library is surely within this of the one that the logarithms decide by.
constexpr double kSurely = 1e-9;

struct Draws {
  uint64_t key;
  double temperature;

  /// u < sigmoid(logit / temperature); where that is close, by the logarithms that are the same
  /// everywhere.
  bool bit(double logit, uint64_t position) const {
    const double u = kernels::uniform_from_bits(kernels::random_bits(key, position), 53);
    const double p = 1 / (1 + std::exp(-logit / temperature));
    if (std::fabs(u - p) > kSurely) return u < p;
    return logit > (kernels::log_of_uniform(u) - kernels::log_of_uniform(1 - u)) * temperature;
  }
};

/// How many real tokens come before each.
template <typename T>
int64_t draw_token(const T* logits, int64_t bits, const Draws* draws, int64_t number) {
  int64_t index = 0;
  for (int64_t h = 0; h < bits; ++h) {
    const auto logit = static_cast<double>(logits[h]);
    if (!std::isfinite(logit)) return 0;
    const bool on =
        draws == nullptr ? logit > 0 : draws->bit(logit, static_cast<uint64_t>(number * bits + h));
    index |= static_cast<int64_t>(on) << h;
  }
  return index;
}

template <typename T>
void draw_tokens(const at::Tensor& logits, const Draws* draws, const bool* mask,
                 at::Tensor& indices) {
  const int64_t bits = logits.size(-1), tokens = indices.numel();
  const auto numbers = detail::token_numbers(mask, tokens);
  const auto* from = logits.const_data_ptr<T>();
  auto* to = indices.mutable_data_ptr<int64_t>();
  at::parallel_for(0, tokens, kBitsPerTask / bits + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool real = mask == nullptr || mask[i];
      to[i] = real ? draw_token(from + i * bits, bits, draws, numbers[static_cast<size_t>(i)]) : -1;
    }
  });
}

at::Tensor binary_sample(const at::Tensor& logits_, const OptionalTensor& rng_, double temperature,
                         const OptionalTensor& mask_) {
  detail::check_binary_sample(logits_, rng_, temperature, mask_);
  const bool wide = logits_.scalar_type() == at::kDouble;
  const auto logits = logits_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  auto indices = at::empty(logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1)),
                           logits.options().dtype(at::kLong));
  Draws draws{0, temperature};
  const bool random = rng_ && temperature > 0;
  if (random) {
    const auto rng = rng_->contiguous();
    const auto* state = rng.const_data_ptr<int64_t>();
    draws.key =
        kernels::random_key(static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]),
                            static_cast<uint64_t>(RandomPurpose::kCodeSampling));
  }
  const auto run = wide ? draw_tokens<double> : draw_tokens<float>;
  run(logits, random ? &draws : nullptr, mask_data, indices);
  return indices;
}

template <typename T>
bool is_finite_row(const T* row, int64_t count) {
  return std::all_of(row, row + count,
                     [](T value) { return std::isfinite(static_cast<float>(value)); });
}

template <typename T>
void set_ones(const at::Tensor& logits, const at::Tensor& indices, int64_t bits,
              at::Tensor& output) {
  const int64_t codes = int64_t{1} << bits;
  const auto* from = logits.const_data_ptr<T>();
  const auto* index = indices.const_data_ptr<int64_t>();
  auto* to = output.mutable_data_ptr<T>();
  at::parallel_for(0, indices.numel(), kCodesPerTask / codes + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      TORCH_CHECK_INDEX(index[i] >= -1 && index[i] < codes,
                        "binary_one_hot: expected indices to be in [-1, ", codes, "), but got ",
                        index[i]);
      const bool finite = index[i] < 0 || is_finite_row(from + i * bits, bits);
      const T fill(finite ? 0.0F : std::numeric_limits<float>::quiet_NaN());
      std::fill_n(to + i * codes, codes, fill);
      if (index[i] >= 0 && finite) to[i * codes + index[i]] = T(1.0F);
    }
  });
}

at::Tensor binary_one_hot(const at::Tensor& logits_, const at::Tensor& indices_,
                          double temperature) {
  const auto bits = detail::check_binary_one_hot(logits_, indices_, temperature);
  const auto logits = logits_.contiguous(), indices = indices_.contiguous();
  auto sizes = indices.sizes().vec();
  sizes.push_back(int64_t{1} << bits);
  auto output = at::empty(sizes, logits.options());
  switch (logits.scalar_type()) {
    case at::kDouble:
      set_ones<double>(logits, indices, bits, output);
      break;
    case at::kHalf:
      set_ones<c10::Half>(logits, indices, bits, output);
      break;
    case at::kBFloat16:
      set_ones<c10::BFloat16>(logits, indices, bits, output);
      break;
    default:
      set_ones<float>(logits, indices, bits, output);
  }
  return output;
}

/// sum of weight[c] * (high[c] - low[c]), and folded[c] = low[c] + p * (high[c] - low[c]). `folded`
/// may be `low`. Sums in a fixed order: a lane for each remainder of 8, then over lanes.
template <typename T>
double fold_bit(const T* low, const T* high, const T* weight, T p, int64_t count, T* folded) {
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const T rise = high[c + lane] - low[c + lane];
      sums[lane] += static_cast<double>(weight[c + lane] * rise);
      folded[c + lane] = low[c + lane] + p * rise;
    }
  }
  for (int64_t lane = 0; c < count; ++c, ++lane) {
    const T rise = high[c] - low[c];
    sums[lane] += static_cast<double>(weight[c] * rise);
    folded[c] = low[c] + p * rise;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

/// Room for one token: below[2^h + c] is the probability of bits 0 to h - 1 being those of c.
template <typename T>
struct Fold {
  explicit Fold(int64_t bits)
      : below(static_cast<size_t>(int64_t{1} << bits)),
        rest(static_cast<size_t>(int64_t{1} << (bits - 1))) {}

  void token(const T* grad, const T* logits, int64_t bits, double temperature, T* to) {
    double p[64];
    below[1] = 1;
    for (int64_t h = 0; h < bits; ++h) {
      p[h] = 1 / (1 + std::exp(-static_cast<double>(logits[h]) / temperature));
      if (h + 1 < bits) extend(h, static_cast<T>(p[h]));
    }
    const T* values = grad;
    for (int64_t h = bits - 1; h >= 0; --h) {
      const int64_t half = int64_t{1} << h;
      const double slope = fold_bit(values, values + half, below.data() + half,
                                    static_cast<T>(p[h]), half, rest.data());
      to[h] = static_cast<T>(slope * p[h] * (1 - p[h]) / temperature);
      values = rest.data();
    }
  }

  void extend(int64_t h, T p) {
    const int64_t count = int64_t{1} << h;
    const T* known = below.data() + count;
    T* next = below.data() + 2 * count;
    for (int64_t c = 0; c < count; ++c) {
      next[c] = known[c] * (1 - p);
      next[count + c] = known[c] * p;
    }
  }

  std::vector<T> below, rest;
};

template <typename T>
void fold_tokens(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& indices,
                 int64_t bits, double temperature, at::Tensor& result) {
  const int64_t codes = int64_t{1} << bits;
  const auto *slopes = grad.const_data_ptr<T>(), *from = logits.const_data_ptr<T>();
  const auto* index = indices.const_data_ptr<int64_t>();
  auto* to = result.mutable_data_ptr<T>();
  at::parallel_for(0, indices.numel(), kCodesPerTask / codes + 1, [&](int64_t begin, int64_t end) {
    Fold<T> fold(bits);
    for (int64_t i = begin; i < end; ++i) {
      if (index[i] < 0) {
        std::fill_n(to + i * bits, bits, T(0));
      } else {
        fold.token(slopes + i * codes, from + i * bits, bits, temperature, to + i * bits);
      }
    }
  });
}

at::Tensor binary_one_hot_backward(const at::Tensor& grad, const at::Tensor& logits_,
                                   const at::Tensor& indices_, double temperature) {
  const auto bits = detail::check_binary_one_hot_backward(grad, logits_, indices_, temperature);
  if (temperature == 0) return at::zeros_like(logits_, at::MemoryFormat::Contiguous);
  const auto dtype = logits_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto logits = logits_.to(dtype).contiguous(), indices = indices_.contiguous();
  auto result = at::empty(logits.sizes(), logits.options());
  const auto run = dtype == at::kDouble ? fold_tokens<double> : fold_tokens<float>;
  run(grad.to(dtype).contiguous(), logits, indices, bits, temperature, result);
  return result.to(logits_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("binary_sample", binary_sample);
  m.impl("binary_one_hot", binary_one_hot);
  m.impl("binary_one_hot_backward", binary_one_hot_backward);
}

}  // namespace torchvq
