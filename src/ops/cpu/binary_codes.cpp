#include "ops/binary_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "detail/precision.h"
#include "detail/token_mask.h"
#include "kernels/cpu/binary_codes.h"
#include "kernels/random.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kBitsPerTask = 4096;
constexpr int64_t kCodesPerTask = 32768;
// Tokens whose probabilities are computed at once: those of one token wait for each other.
constexpr int64_t kTokensAtOnce = 16;
// Hardware reads ahead within a row, but not across the start of the next one.
constexpr int64_t kBytesAhead = 2048, kCacheLine = 64;
// Bound on the difference between these probabilities and those of the logarithms that decide.
constexpr double kSurely = 1e-9;

/// Calls body(i, p) for tokens [begin, end) with the probabilities p of their bits.
template <typename T, typename Body>
void over_chances(const T* logits, double temperature, int64_t bits, int64_t begin, int64_t end,
                  const Body& body) {
  const auto kernel = kernels::binary_codes_kernel(kernels::cpu_level());
  std::array<double, kTokensAtOnce * kernels::kMostBits> p;
  for (int64_t first = begin; first < end; first += kTokensAtOnce) {
    const int64_t last = std::min(end, first + kTokensAtOnce);
    kernel.of<T>().chances(logits + first * bits, temperature, (last - first) * bits, p.data());
    for (int64_t i = first; i < last; ++i) body(i, p.data() + (i - first) * bits);
  }
}

struct Draws {
  uint64_t key;
  double temperature;

  /// Returns u < p, where p = sigmoid(logit / temperature); if they are close, decides by
  /// logarithms that have the same bits on every device.
  bool bit(double logit, double p, uint64_t position) const {
    const double u = kernels::uniform_from_bits(kernels::random_bits(key, position), 53);
    if (std::fabs(u - p) > kSurely) return u < p;
    return logit > (kernels::log_of_uniform(u) - kernels::log_of_uniform(1 - u)) * temperature;
  }
};

/// The index of a token whose bit h is bit(h, logit); 0 if a logit is not finite.
template <typename T, typename Bit>
int64_t index_of_bits(const T* logits, int64_t bits, const Bit& bit) {
  int64_t index = 0;
  for (int64_t h = 0; h < bits; ++h) {
    const auto logit = static_cast<double>(logits[h]);
    if (!std::isfinite(logit)) return 0;
    index |= static_cast<int64_t>(bit(h, logit)) << h;
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
  const auto fill = [&](int64_t i, const auto& bit) {
    const bool real = mask == nullptr || mask[i];
    to[i] = real ? index_of_bits(from + i * bits, bits, bit) : -1;
  };
  at::parallel_for(0, tokens, kBitsPerTask / bits + 1, [&](int64_t begin, int64_t end) {
    if (draws == nullptr) {
      for (int64_t i = begin; i < end; ++i)
        fill(i, [](int64_t, double logit) { return logit > 0; });
      return;
    }
    over_chances(from, draws->temperature, bits, begin, end, [&](int64_t i, const double* p) {
      const int64_t first = numbers[static_cast<size_t>(i)] * bits;
      fill(i, [&](int64_t h, double logit) {
        return draws->bit(logit, p[h], static_cast<uint64_t>(first + h));
      });
    });
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
                     [](T value) { return std::isfinite(static_cast<double>(value)); });
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

void read_ahead(const void* row, int64_t bytes) {
  const auto* const from = static_cast<const char*>(row);
  for (int64_t at = 0; at < std::min(bytes, kBytesAhead); at += kCacheLine) {
    __builtin_prefetch(from + at);
  }
}

template <typename T>
void fold_tokens(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& indices,
                 int64_t bits, double temperature, at::Tensor& result) {
  const int64_t codes = int64_t{1} << bits;
  const auto *slopes = grad.const_data_ptr<T>(), *from = logits.const_data_ptr<T>();
  const auto* index = indices.const_data_ptr<int64_t>();
  auto* to = result.mutable_data_ptr<T>();
  const auto fold = kernels::binary_codes_kernel(kernels::cpu_level()).of<T>().fold;
  at::parallel_for(0, indices.numel(), kCodesPerTask / codes + 1, [&](int64_t begin, int64_t end) {
    std::vector<T> below(static_cast<size_t>(codes)), rest(static_cast<size_t>(codes / 2));
    over_chances(from, temperature, bits, begin, end, [&](int64_t i, const double* p) {
      if (index[i] < 0) {
        std::fill_n(to + i * bits, bits, T(0));
        return;
      }
      if (i + 1 < end) {
        read_ahead(slopes + (i + 1) * codes, codes * static_cast<int64_t>(sizeof(T)));
      }
      fold(slopes + i * codes, p, bits, temperature, below.data(), rest.data(), to + i * bits);
    });
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

// Blocks, and so the order of additions, do not depend on the number of threads.
constexpr int64_t kDivergencesPerBlock = 1024;

/// The divergences of tokens above the threshold, and their slopes, one block at a time.
struct Divergences {
  Divergences(const at::Tensor& logits_, double threshold_, const OptionalTensor& mask_)
      : logits(logits_.to(at::kFloat).contiguous()),
        mask(mask_ ? mask_->contiguous() : at::Tensor()),
        threshold(threshold_),
        bits(logits.size(-1)),
        tokens(logits.numel() / bits),
        real(mask.defined() ? mask.const_data_ptr<bool>() : nullptr),
        per_block(kDivergencesPerBlock / bits + 1),
        blocks((tokens + per_block - 1) / per_block) {}

  /// Calls body(block, token, told, slopes of its bits) for each token; told is 0 for padding.
  template <typename Body>
  void over_tokens(const Body& body) const {
    const auto kernel = kernels::binary_codes_kernel(kernels::cpu_level());
    const float* from = logits.const_data_ptr<float>();
    at::parallel_for(0, blocks, 4, [&](int64_t first, int64_t last) {
      std::vector<double> told(static_cast<size_t>(std::min(per_block, tokens) * bits));
      std::vector<double> slopes(told.size());
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * per_block, end = std::min(tokens, begin + per_block);
        kernel.divergence(from + begin * bits, (end - begin) * bits, told.data(), slopes.data());
        for (int64_t i = begin; i < end; ++i) {
          const auto place = (i - begin) * bits;
          body(block, i, beyond(i, told.data() + place), slopes.data() + place);
        }
      }
    });
  }

  double beyond(int64_t token, const double* told) const {
    if (real != nullptr && !real[token]) return 0;
    double sum = 0;
    for (int64_t h = 0; h < bits; ++h) sum += told[h];
    return sum - threshold <= 0 ? 0 : sum - threshold;  // NaN stays
  }

  double count() const {
    const auto counted = real == nullptr ? tokens : std::count(real, real + tokens, true);
    return static_cast<double>(std::max<int64_t>(counted, 1));
  }

  at::Tensor logits, mask;
  double threshold;
  int64_t bits, tokens;
  const bool* real;
  int64_t per_block, blocks;
};

at::Tensor binary_kl_loss(const at::Tensor& logits, double threshold, const OptionalTensor& mask,
                          bool reduce) {
  detail::check_binary_kl_loss(logits, threshold, mask);
  if (logits.scalar_type() == at::kDouble) {
    return detail::binary_kl_loss_any(logits, threshold, mask, reduce);
  }
  const Divergences all(logits, threshold, mask);
  const auto options = all.logits.options();
  const auto shape = logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1));
  auto result = at::empty(reduce ? at::IntArrayRef() : shape, options);
  auto* to = result.mutable_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>(all.blocks));
  all.over_tokens([&](int64_t block, int64_t token, double told, const double* /*slopes*/) {
    sums[static_cast<size_t>(block)] += told;
    if (!reduce) to[token] = static_cast<float>(told);
  });
  if (reduce) {
    double total = 0;
    for (const double sum : sums) total += sum;
    *to = static_cast<float>(total / all.count());
  }
  return result;
}

at::Tensor binary_kl_loss_backward(const at::Tensor& grad_, const at::Tensor& logits,
                                   double threshold, const OptionalTensor& mask, bool reduce) {
  detail::check_binary_kl_loss_backward(grad_, logits, threshold, mask, reduce);
  if (logits.scalar_type() == at::kDouble) {
    return detail::binary_kl_loss_backward_any(grad_, logits, threshold, mask, reduce);
  }
  const Divergences all(logits, threshold, mask);
  const auto grad = grad_.to(at::kFloat).contiguous();
  const float* from = grad.const_data_ptr<float>();
  const float own = reduce ? *from / static_cast<float>(all.count()) : 0.0F;
  auto result = at::empty(all.logits.sizes(), all.logits.options());
  auto* to = result.mutable_data_ptr<float>();
  all.over_tokens([&](int64_t /*block*/, int64_t token, double told, const double* slopes) {
    const auto upstream = static_cast<double>(reduce ? own : from[token]);
    for (int64_t h = 0; h < all.bits; ++h) {
      // Not a product with 0, because padding may hold NaN.
      to[token * all.bits + h] = told == 0 ? 0.0F : static_cast<float>(slopes[h] * upstream);
    }
  });
  return result.to(logits.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("binary_sample", binary_sample);
  m.impl("binary_one_hot", binary_one_hot);
  m.impl("binary_one_hot_backward", binary_one_hot_backward);
  m.impl("binary_kl_loss", binary_kl_loss);
  m.impl("binary_kl_loss_backward", binary_kl_loss_backward);
}

}  // namespace torchvq
