// Entropies from the sums of sign_entropy, and their gradients.
#include "kernels/cuda/product_tile-inl.h"
#include "kernels/cuda/sign_entropy_bits-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kThreads = 128;
constexpr int kStripe = 16;           // partial sums of a fold, as on CPU
constexpr int kFoldValues = 1 << 12;  // values of all tokens of a block
constexpr int kMostFoldTokens = 16;

/// One block per kEntropyCodes codes; the first thread adds their terms in order.
__global__ void __launch_bounds__(kThreads)
    logarithms_of_codes(const float* totals, const float* tail, int64_t codes, float* logarithms,
                        double* parts) {
  __shared__ double terms[kEntropyCodes];
  const auto count = static_cast<double>(tail[1]);
  if (count == 0) return;
  const auto scale = static_cast<float>(1 / count);
  const int64_t first = blockIdx.x * kEntropyCodes;
  const int64_t left = codes - first;
  const int wanted = static_cast<int>(left < kEntropyCodes ? left : kEntropyCodes);
  for (int i = threadIdx.x; i < wanted; i += kThreads) {
    const float value = totals[first + i] * scale;
    const float found = logarithm(value < kSmallestNormal ? kSmallestNormal : value);
    const float known = value == value ? found : value;
    logarithms[first + i] = known;
    terms[i] = static_cast<double>(value) * static_cast<double>(known);  // exact
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double part = 0;
  for (int i = 0; i < wanted; ++i) part -= terms[i];
  parts[blockIdx.x] = part;
}

__global__ void add_group(const double* parts, int64_t part_count, const float* tail, bool first,
                          double* group_entropy, double* entropies) {
  const auto count = static_cast<double>(tail[1]);
  if (count == 0) return;
  if (first) entropies[0] += static_cast<double>(tail[0]) / count;
  double sum = 0;
#pragma unroll 8
  for (int64_t part = 0; part < part_count; ++part) sum += parts[part];
  *group_entropy = sum;
  entropies[1] += sum;
}

__global__ void divide_means(const double* entropies, int64_t heads, float* per_sample,
                             float* batch) {
  *per_sample = static_cast<float>(entropies[0] / static_cast<double>(heads));
  *batch = static_cast<float>(entropies[1] / static_cast<double>(heads));
}

/// expected[n, c]: the mean, over the other half's distribution for token n, of the centred
/// logarithms of the codes whose own half is c.
__global__ void __launch_bounds__(kProductThreads, 2)
    expected_values(EntropyTokens tokens, EntropyBits bits, EntropyHalf half, int64_t begin,
                    int64_t count, float* expected) {
  __shared__ ProductTile tile;
  const EntropyGroup group = half.group;
  const int64_t real = real_tokens(tokens);
  const int own = static_cast<int>(half.is_high ? group.high : group.low);
  const int64_t across = ((int64_t{1} << own) + kProductSide - 1) / kProductSide;
  const int64_t row = blockIdx.x / across * kProductSide,
                column = blockIdx.x % across * kProductSide;
  if (half.tail[1] == 0 || begin + row >= real) return;  // the same for all threads of the block
  const int64_t end = begin + count < real ? begin + count : real;
  const int other = static_cast<int>(half.is_high ? group.low : group.high);
  const int64_t other_first = group.first + (half.is_high ? group.high : 0);
  const int64_t size = int64_t{1} << own, others = int64_t{1} << other;
  const int64_t columns = int64_t{1} << group.low;
  const auto entropy = static_cast<float>(*half.group_entropy);
  ProductSums total{};
  for (int64_t from = 0; from < others; from += kEntropyBlock) {
    const int64_t depth = others - from < kEntropyBlock ? others - from : kEntropyBlock;
    total.add(product_block(
        tile, depth,
        [&](int64_t k, int64_t r) {
          const int64_t n = begin + row + r;
          if (n >= end) return 0.0F;
          const int64_t at = n * tokens.bits + other_first;
          return code_probability(bits.on + at, bits.off + at, other, static_cast<int>(from + k));
        },
        [&](int64_t k, int64_t c) {
          const int64_t own_code = column + c, other_code = from + k;
          if (own_code >= size) return 0.0F;
          const int64_t at =
              half.is_high ? own_code * columns + other_code : other_code * columns + own_code;
          return half.logarithms[at] + entropy;
        }));
  }
  total.store(expected, row, column, end - begin, size);
}

/// kStripe threads fold the expected values of one token, bit by bit.
__global__ void __launch_bounds__(kMostFoldTokens* kStripe)
    fold_tokens(EntropyTokens tokens, EntropyBits bits, EntropyHalf half, int64_t begin,
                int64_t count, const float* expected, float* grad) {
  __shared__ float shared_values[kFoldValues], shared_pyramids[kFoldValues];
  __shared__ float shared_stripes[kMostFoldTokens][kStripe];
  const int own = static_cast<int>(half.is_high ? half.group.high : half.group.low);
  const int64_t first = half.group.first + (half.is_high ? 0 : half.group.high);
  const int size = 1 << own;
  const int lane = static_cast<int>(threadIdx.x) % kStripe;
  const int place = static_cast<int>(threadIdx.x) / kStripe;
  const int64_t real = real_tokens(tokens);
  const int64_t end = begin + count < real ? begin + count : real;
  const int64_t n = begin + static_cast<int64_t>(blockIdx.x) * (blockDim.x / kStripe) + place;
  // Threads without a token take part because of the barriers.
  const bool holds = n < end && half.tail[1] != 0;
  float* values = shared_values + place * size;
  float* pyramid = shared_pyramids + place * size;
  const float *on = bits.on + n * tokens.bits + first, *off = bits.off + n * tokens.bits + first;
  for (int i = lane; i < size; i += kStripe) {
    values[i] = holds ? expected[(n - begin) * size + i] : 0.0F;
  }
  if (lane == 0) pyramid[size > 1 ? 1 : 0] = 1;
  __syncthreads();
  for (int k = 0; k + 1 < own; ++k) {
    const int below = 1 << k, bit = own - 1 - k;
    const float p = holds ? on[bit] : 0.0F, q = holds ? off[bit] : 0.0F;
    for (int i = lane; i < below; i += kStripe) {
      const float value = pyramid[below + i];
      pyramid[2 * below + i] = value * q;
      pyramid[3 * below + i] = value * p;
    }
    __syncthreads();
  }
  const float weight = -gradient_weight(half.tail, half.sharpness, half.heads);
  for (int bit = 0; bit < own; ++bit) {
    const int below = 1 << (own - 1 - bit);
    const float p = holds ? on[bit] : 0.0F, q = holds ? off[bit] : 0.0F;
    float stripe = 0;
    for (int i = lane; i < below; i += kStripe) {
      stripe += pyramid[below + i] * (values[below + i] - values[i]);
    }
    shared_stripes[place][lane] = stripe;
    for (int i = lane; i < below; i += kStripe) {
      values[i] = q * values[i] + p * values[below + i];
    }
    __syncthreads();
    if (holds && lane == 0) {
      float sum = 0;
      for (int s = 0; s < kStripe; ++s) sum += shared_stripes[place][s];
      grad[bits.row[n] * tokens.bits + first + bit] = weight * (p * q) * sum;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    slopes_of_tokens(EntropyTokens tokens, EntropyBits bits, const float* tail, int64_t heads,
                     float* grad) {
  const float weight = gradient_weight(tail, tokens.sharpness, heads);
  if (tail[1] == 0) return;
  const int64_t values = real_tokens(tokens) * tokens.bits;
  for (int64_t at = grid_thread(); at < values; at += grid_threads()) {
    const int64_t n = at / tokens.bits, bit = at % tokens.bits;
    grad[bits.row[n] * tokens.bits + bit] = bits.slope[at] * weight;
  }
}

}  // namespace

Error entropy_logarithms(const float* totals, const float* tail, int64_t codes, float* logarithms,
                         double* parts, const Queue& queue) {
  const int64_t blocks = (codes + kEntropyCodes - 1) / kEntropyCodes;
  return launch(logarithms_of_codes, queue, static_cast<unsigned>(blocks), kThreads, 0, totals,
                tail, codes, logarithms, parts);
}

Error entropy_of_group(const double* parts, int64_t part_count, const float* tail, bool first,
                       double* group_entropy, double* entropies, const Queue& queue) {
  return launch(add_group, queue, 1, 1, 0, parts, part_count, tail, first, group_entropy,
                entropies);
}

Error entropy_means(const double* entropies, int64_t heads, float* per_sample, float* batch,
                    const Queue& queue) {
  return launch(divide_means, queue, 1, 1, 0, entropies, heads, per_sample, batch);
}

Error entropy_half(const EntropyTokens& tokens, const EntropyBits& bits, const EntropyHalf& half,
                   int64_t begin, int64_t count, float* expected, float* grad, const Queue& queue) {
  const int64_t own = half.is_high ? half.group.high : half.group.low;
  if (own == 0 || count <= 0) return nullptr;
  const auto along = [](int64_t length) { return (length + kProductSide - 1) / kProductSide; };
  const auto tiles = static_cast<unsigned>(along(int64_t{1} << own) * along(count));
  const Error error = launch(expected_values, queue, tiles, kProductThreads, 0, tokens, bits, half,
                             begin, count, expected);
  if (error != nullptr) return error;
  const int64_t fitting = kFoldValues >> own;
  const int64_t at_once = fitting < kMostFoldTokens ? fitting : kMostFoldTokens;
  return launch(fold_tokens, queue, static_cast<unsigned>((count + at_once - 1) / at_once),
                static_cast<unsigned>(at_once * kStripe), 0, tokens, bits, half, begin, count,
                expected, grad);
}

Error entropy_slopes(const EntropyTokens& tokens, const EntropyBits& bits, const float* tail,
                     int64_t heads, float* grad, const Queue& queue) {
  if (tokens.tokens == 0) return nullptr;
  return launch(slopes_of_tokens, queue, blocks_for(tokens.tokens * tokens.bits, kThreads),
                kThreads, 0, tokens, bits, tail, heads, grad);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
