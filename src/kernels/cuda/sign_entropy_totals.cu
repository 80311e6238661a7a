// Sums of sign_entropy over tokens: probabilities of bits, the product of the halves' distributions
// in tiles, and the tokens' entropies.
#include "kernels/cuda/product_tile-inl.h"
#include "kernels/cuda/sign_entropy_bits-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kThreads = 128;

__global__ void __launch_bounds__(kThreads) bits_of_tokens(EntropyTokens tokens, EntropyBits to) {
  for (int64_t n = grid_thread(); n < tokens.tokens; n += grid_threads()) {
    if (tokens.mask != nullptr && !tokens.mask[n]) continue;
    const int64_t place = tokens.mask == nullptr ? n : tokens.place[n] - 1;
    double entropy = 0;
    for (int64_t bit = 0; bit < tokens.bits; ++bit) {
      const OneBit found = one_bit(tokens.x[n * tokens.bits + bit] * tokens.sharpness);
      const int64_t at = place * tokens.bits + bit;
      to.on[at] = found.on;
      to.off[at] = found.off;
      if (to.slope != nullptr) to.slope[at] = found.slope;
      entropy += static_cast<double>(found.entropy);
    }
    if (to.entropy != nullptr) to.entropy[place] = entropy;
    if (to.row != nullptr) to.row[place] = n;
  }
}

/// Sums of blocks of tokens, each from zero; every part covers blocks_per_part blocks.
struct ProductTask {
  EntropyGroup group;
  int64_t tiles;  // per part
  int64_t first_block, blocks_per_part;
  float* to;  // (parts, codes)
};

/// Distributions of the real tokens of a head.
struct TokenOperand {
  const float *on, *off;
  int64_t bits, tokens;
  int count;

  __device__ float operator()(int64_t token, int64_t code) const {
    if (token >= tokens || code >= (int64_t{1} << count)) return 0;
    return code_probability(on + token * bits, off + token * bits, count, static_cast<int>(code));
  }
};

__global__ void __launch_bounds__(kProductThreads, 2)
    products_of_tokens(EntropyTokens tokens, EntropyBits bits, ProductTask task) {
  __shared__ ProductTile tile;
  const int64_t rows = int64_t{1} << task.group.high, columns = int64_t{1} << task.group.low;
  const int64_t across = (columns + kProductSide - 1) / kProductSide;
  const int64_t part = blockIdx.x / task.tiles, place = blockIdx.x % task.tiles;
  const int64_t row = place / across * kProductSide, column = place % across * kProductSide;
  const int64_t real = real_tokens(tokens);
  const float *on = bits.on + task.group.first, *off = bits.off + task.group.first;
  const TokenOperand left{on, off, tokens.bits, real, static_cast<int>(task.group.high)};
  const TokenOperand right{on + task.group.high, off + task.group.high, tokens.bits, real,
                           static_cast<int>(task.group.low)};
  ProductSums total{};
  const int64_t begin = task.first_block + part * task.blocks_per_part;
  for (int64_t block = begin; block < begin + task.blocks_per_part; ++block) {
    const int64_t from = block * kEntropyBlock;
    if (from >= real) break;  // the same for all threads of the block
    const int64_t depth = real - from < kEntropyBlock ? real - from : kEntropyBlock;
    total.add(product_block(
        tile, depth, [&](int64_t k, int64_t r) { return left(from + k, row + r); },
        [&](int64_t k, int64_t c) { return right(from + k, column + c); }));
  }
  total.store(task.to + part * rows * columns, row, column, rows, columns);
}

__global__ void __launch_bounds__(kThreads)
    add_parts(const float* parts, int64_t part_count, int64_t codes, float* to) {
  for (int64_t code = grid_thread(); code < codes; code += grid_threads()) {
    float sum = to[code];
    for (int64_t part = 0; part < part_count; ++part) sum += parts[part * codes + code];
    to[code] = sum;
  }
}

/// One thread per block of tokens.
__global__ void __launch_bounds__(kThreads)
    entropies_of_blocks(EntropyTokens tokens, const double* entropy, int64_t blocks, double* sums) {
  const int64_t real = real_tokens(tokens);
  for (int64_t block = grid_thread(); block < blocks; block += grid_threads()) {
    const int64_t begin = block * kEntropyBlock;
    const int64_t end = begin + kEntropyBlock < real ? begin + kEntropyBlock : real;
    double sum = 0;
    for (int64_t n = begin; n < end; ++n) sum += entropy[n];
    sums[block] = sum;
  }
}

__global__ void write_tail(EntropyTokens tokens, const double* sums, int64_t blocks, float* tail) {
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
  tail[0] = static_cast<float>(sum);
  tail[1] = static_cast<float>(real_tokens(tokens));
  tail[2] = 1;
}

int64_t blocks_of(int64_t tokens) { return (tokens + kEntropyBlock - 1) / kEntropyBlock; }

int64_t tiles_of(const EntropyGroup& group) {
  const auto along = [](int64_t bits) {
    return ((int64_t{1} << bits) + kProductSide - 1) / kProductSide;
  };
  return along(group.high) * along(group.low);
}

}  // namespace

Error entropy_bits(const EntropyTokens& tokens, const EntropyBits& to, const Queue& queue) {
  if (tokens.tokens == 0) return nullptr;
  return launch(bits_of_tokens, queue, blocks_for(tokens.tokens, kThreads), kThreads, 0, tokens,
                to);
}

int64_t entropy_part_count(int64_t tokens, const EntropyGroup& group) {
  constexpr int64_t kWanted = 1024, kMostPartValues = int64_t{1} << 24;
  const int64_t codes = int64_t{1} << (group.high + group.low);
  const int64_t wanted = (kWanted + tiles_of(group) - 1) / tiles_of(group);
  const int64_t room = kMostPartValues / codes;
  const int64_t most = room < wanted ? room : wanted;
  const int64_t blocks = blocks_of(tokens);
  const int64_t parts = blocks < most ? blocks : most;
  return parts < 2 ? 0 : parts;
}

Error entropy_products(const EntropyTokens& tokens, const EntropyBits& bits,
                       const EntropyGroup& group, float* parts, int64_t part_count, float* to,
                       const Queue& queue) {
  const int64_t blocks = blocks_of(tokens.tokens);
  if (blocks == 0) return nullptr;
  const int64_t tiles = tiles_of(group);
  if (part_count == 0) {
    return launch(products_of_tokens, queue, static_cast<unsigned>(tiles), kProductThreads, 0,
                  tokens, bits, ProductTask{group, tiles, 0, blocks, to});
  }
  const int64_t codes = int64_t{1} << (group.high + group.low);
  for (int64_t first = 0; first < blocks; first += part_count) {
    const int64_t count = blocks - first < part_count ? blocks - first : part_count;
    Error error =
        launch(products_of_tokens, queue, static_cast<unsigned>(tiles * count), kProductThreads, 0,
               tokens, bits, ProductTask{group, tiles, first, 1, parts});
    if (error != nullptr) return error;
    error =
        launch(add_parts, queue, blocks_for(codes, kThreads), kThreads, 0, parts, count, codes, to);
    if (error != nullptr) return error;
  }
  return nullptr;
}

Error entropy_tail(const EntropyTokens& tokens, const EntropyBits& bits, double* sums, float* tail,
                   const Queue& queue) {
  const int64_t blocks = blocks_of(tokens.tokens);
  if (blocks > 0) {
    const Error error = launch(entropies_of_blocks, queue, blocks_for(blocks, kThreads), kThreads,
                               0, tokens, bits.entropy, blocks, sums);
    if (error != nullptr) return error;
  }
  return launch(write_tail, queue, 1, 1, 0, tokens, sums, blocks, tail);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
