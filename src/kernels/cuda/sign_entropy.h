// sign_entropy in float32 on a CUDA device, with the bits of kernels/cpu/sign_entropy.h and of the
// loops in ops/cpu/sign_entropy.cpp. Nothing here waits for the device. Torch-free.
//
// The distributions of the halves of a code are computed from the probabilities of the bits where a
// product needs them: memory is O(N D + 2^D), not O(N 2^(D/2)).
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Block length of sums over tokens, as on CPU (kProductBlock).
inline constexpr int64_t kEntropyBlock = 256;
/// Number of codes whose entropies are added in sequence, as on CPU.
inline constexpr int64_t kEntropyCodes = 4096;

/// The tokens of one head, of which the kernels use the real ones.
struct EntropyTokens {
  const float* x = nullptr;        ///< (tokens, bits)
  const bool* mask = nullptr;      ///< (tokens), or null: all are real
  const int64_t* place = nullptr;  ///< (tokens), real tokens up to each, if there is a mask
  int64_t tokens = 0, bits = 0;
  float sharpness = 0;
};

/// Values kept for real tokens, (tokens) or (tokens, bits); only as many rows as there are
/// real tokens are written.
struct EntropyBits {
  float *on = nullptr, *off = nullptr;
  float* slope = nullptr;     ///< or null
  double* entropy = nullptr;  ///< or null
  int64_t* row = nullptr;     ///< position of the token in x, or null
};

/// Bits of a group: the first `high` of them are one half of a code, the next `low` the other.
struct EntropyGroup {
  int64_t first = 0, high = 0, low = 0;
};

Error entropy_bits(const EntropyTokens& tokens, const EntropyBits& to, const Queue& queue);

/// to (2^(high + low)) = the sum of the distributions of all real tokens; `parts` holds
/// `part_count` arrays of that size, or is null with part_count 0.
Error entropy_products(const EntropyTokens& tokens, const EntropyBits& bits,
                       const EntropyGroup& group, float* parts, int64_t part_count, float* to,
                       const Queue& queue);

/// Number of parts with which a product occupies the whole device, at most one per block of tokens.
int64_t entropy_part_count(int64_t tokens, const EntropyGroup& group);

/// tail = {sum of entropies, real tokens, 1}; `sums` has room for one number per block of tokens.
Error entropy_tail(const EntropyTokens& tokens, const EntropyBits& bits, double* sums, float* tail,
                   const Queue& queue);

/// Logarithms of the mean distribution of a group (codes), and partial sums of its entropy, one per
/// kEntropyCodes codes. tail[1] is the number of tokens of all ranks.
Error entropy_logarithms(const float* totals, const float* tail, int64_t codes, float* logarithms,
                         double* parts, const Queue& queue);

/// group_entropy = the sum of parts; entropies[1] += group_entropy, and with `first` entropies[0]
/// += the mean of the tokens' entropies. Nothing is added for a head without tokens.
Error entropy_of_group(const double* parts, int64_t part_count, const float* tail, bool first,
                       double* group_entropy, double* entropies, const Queue& queue);

/// per_sample = entropies[0] / heads and batch = entropies[1] / heads, rounded.
Error entropy_means(const double* entropies, int64_t heads, float* per_sample, float* batch,
                    const Queue& queue);

/// Gradient of the bits of one half of a group for tokens begin ... begin + count.
struct EntropyHalf {
  EntropyGroup group;
  bool is_high = false;                   ///< which half the gradient is for
  const float* logarithms = nullptr;      ///< (2^high, 2^low)
  const double* group_entropy = nullptr;  ///< added to each logarithm
  const float* tail = nullptr;
  float sharpness = 0;
  int64_t heads = 1;
};

/// expected (count, 2^(bits of the half)) is overwritten; grad (tokens, bits).
Error entropy_half(const EntropyTokens& tokens, const EntropyBits& bits, const EntropyHalf& half,
                   int64_t begin, int64_t count, float* expected, float* grad, const Queue& queue);

/// grad (tokens, bits) = slope * weight, at the positions of the real tokens.
Error entropy_slopes(const EntropyTokens& tokens, const EntropyBits& bits, const float* tail,
                     int64_t heads, float* grad, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
