#include "distributed/fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "detail/device_table.h"
#include "detail/random_tensor.h"
#include "kernels/random.h"

namespace torchvq::distributed {
namespace {

/// A block of words is hashed by multiplications only, which vectorize; the
/// hashes of blocks are mixed.
constexpr int64_t kBlock = 64;
constexpr int64_t kBlocksPerChunk = int64_t{1} << 15;

constexpr std::array<uint64_t, kBlock> make_multipliers() {
  std::array<uint64_t, kBlock> multipliers{};
  for (uint64_t j = 0; j < kBlock; ++j) multipliers[j] = (kernels::mix_bits(j + 1) >> 32) | 1;
  return multipliers;
}

constexpr auto kMultipliers = make_multipliers();

constexpr uint64_t mix_block(uint64_t sum, uint64_t number) {
  return kernels::mix_bits(sum + kernels::mix_bits(number + 1));
}

template <typename Word>
uint64_t hash_words(const Word* words, int64_t count) {
  uint64_t total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    uint64_t sum = 0;
    const int64_t size = std::min(kBlock, count - begin);
    for (int64_t j = 0; j < size; ++j)
      sum += static_cast<uint64_t>(words[begin + j]) * kMultipliers[j];
    total += mix_block(sum, static_cast<uint64_t>(begin / kBlock));
  }
  return kernels::mix_bits(total + static_cast<uint64_t>(count));
}

/// Elements as integers of at most 32 bits; wider elements become several words.
at::Tensor as_words(const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous().reshape({-1});
  switch (flat.element_size()) {
    case 1:
      return flat.view(at::kByte);
    case 2:
      return flat.view(at::kShort);
    default:
      return flat.view(at::kInt);
  }
}

uint64_t hash_on_cpu(const at::Tensor& tensor) {
  const auto words = as_words(tensor);
  const int64_t count = words.numel();
  switch (words.element_size()) {
    case 1:
      return hash_words(static_cast<const uint8_t*>(words.const_data_ptr()), count);
    case 2:
      return hash_words(static_cast<const uint16_t*>(words.const_data_ptr()), count);
    default:
      return hash_words(static_cast<const uint32_t*>(words.const_data_ptr()), count);
  }
}

at::Tensor to_scalar(uint64_t bits, at::Device device) {
  return at::scalar_tensor(static_cast<int64_t>(bits), at::TensorOptions(at::kLong).device(device));
}

at::Tensor combine(const at::Tensor& total, const at::Tensor& next) {
  return detail::mix_bits(total.bitwise_xor(next));
}

}  // namespace

uint64_t fingerprint(std::string_view text) {
  return hash_words(reinterpret_cast<const uint8_t*>(text.data()),
                    static_cast<int64_t>(text.size()));
}

at::Tensor fingerprint_by_operators(const at::Tensor& tensor) {
  const auto words = as_words(tensor);
  const auto options = at::TensorOptions(at::kLong).device(tensor.device());
  const auto unsigned_words = (int64_t{1} << (8 * words.element_size())) - 1;
  const auto multipliers = detail::device_table(
      at::IntArrayRef(reinterpret_cast<const int64_t*>(kMultipliers.data()), kBlock), options);
  auto total = at::zeros({}, options);
  const int64_t count = words.numel(), chunk = kBlock * kBlocksPerChunk;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const auto part = words.narrow(0, begin, std::min(chunk, count - begin)).to(at::kLong);
    const int64_t blocks = (part.size(0) + kBlock - 1) / kBlock;
    const auto padded =
        at::constant_pad_nd(part.bitwise_and(unsigned_words), {0, blocks * kBlock - part.size(0)});
    const auto sums = padded.view({blocks, kBlock}).mul(multipliers).sum(1);
    const auto numbers = at::arange(begin / kBlock, begin / kBlock + blocks, options);
    total.add_(detail::mix_bits(sums + detail::mix_bits(numbers + 1)).sum());
  }
  return detail::mix_bits(total.add(count));
}

at::Tensor fingerprint(const at::Tensor& tensor) {
  return tensor.is_cpu() ? to_scalar(hash_on_cpu(tensor), tensor.device())
                         : fingerprint_by_operators(tensor);
}

at::Tensor fingerprint(at::TensorList tensors, at::Device device) {
  auto total = to_scalar(tensors.size(), device);
  if (device.is_cpu() &&
      std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.is_cpu(); })) {
    auto bits = static_cast<uint64_t>(tensors.size());
    for (const auto& tensor : tensors) bits = kernels::mix_bits(bits ^ hash_on_cpu(tensor));
    return to_scalar(bits, device);
  }
  for (const auto& tensor : tensors) total = combine(total, fingerprint(tensor).to(device));
  return total;
}

}  // namespace torchvq::distributed
