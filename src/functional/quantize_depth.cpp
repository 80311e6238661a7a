#include <torchvq/functional/quantize_depth.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <torchvq/ops/random_uniform.h>

namespace torchvq::functional {
namespace {

/// MT19937, as much as a few draws need.
class Twister {
 public:
  explicit Twister(const std::vector<uint32_t>& key) {
    seed(19650218U);
    const size_t length = key.size();
    size_t i = 1, j = 0;
    for (size_t k = std::max(kSize, length); k > 0; --k) {
      state_[i] = (state_[i] ^ (mixed(i) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
      advance(i);
      j = j + 1 == length ? 0 : j + 1;
    }
    for (size_t k = kSize - 1; k > 0; --k) {
      state_[i] = (state_[i] ^ (mixed(i) * 1566083941U)) - static_cast<uint32_t>(i);
      advance(i);
    }
    state_[0] = 0x80000000U;
  }

  uint32_t operator()() {
    // The recurrence replaces the oldest word, so words can be generated one at a time.
    const uint32_t joined = (state_[at_] & 0x80000000U) | (state_[(at_ + 1) % kSize] & 0x7fffffffU);
    state_[at_] =
        state_[(at_ + 397) % kSize] ^ (joined >> 1) ^ ((joined & 1U) != 0 ? 0x9908b0dfU : 0U);
    uint32_t y = state_[at_];
    at_ = (at_ + 1) % kSize;
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }

 private:
  static constexpr size_t kSize = 624;

  void seed(uint32_t value) {
    state_[0] = value;
    for (size_t i = 1; i < kSize; ++i) {
      state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
    }
  }
  uint32_t mixed(size_t i) const { return state_[i - 1] ^ (state_[i - 1] >> 30); }
  void advance(size_t& i) {
    if (++i >= kSize) {
      state_[0] = state_[kSize - 1];
      i = 1;
    }
  }

  std::array<uint32_t, kSize> state_{};
  size_t at_ = 0;
};

/// Uniform in [0, count), by rejection, with the same draws as Python's
/// random.randrange. 0 < count < 2^32.
int64_t randrange(int64_t seed, int64_t count) {
  const uint64_t magnitude =
      seed < 0 ? ~static_cast<uint64_t>(seed) + 1 : static_cast<uint64_t>(seed);
  std::vector<uint32_t> key{static_cast<uint32_t>(magnitude)};
  if ((magnitude >> 32) != 0) {
    key.push_back(static_cast<uint32_t>(magnitude >> 32));
  }
  Twister draw(key);
  const int bits = std::bit_width(static_cast<uint64_t>(count));
  uint32_t value = 0;
  do {
    value = draw() >> (32 - bits);
  } while (value >= count);
  return value;
}

void check_rule(const DepthRule& rule) {
  TORCH_CHECK_VALUE(rule.cutoff_index >= 0 && rule.cutoff_index < rule.levels,
                    "quantize_depth: expected quantize_dropout_cutoff_index to be in [0, ",
                    rule.levels, "), but got ", rule.cutoff_index);
  TORCH_CHECK_VALUE(rule.multiple_of >= 1,
                    "quantize_depth: expected quantize_dropout_multiple_of to be at least 1, ",
                    "but got ", rule.multiple_of);
}

int64_t round_up(int64_t depth, const DepthRule& rule) {
  const auto multiple = rule.multiple_of;
  return std::min((depth + multiple - 1) / multiple * multiple, rule.levels);
}

}  // namespace

int64_t seeded_depth(int64_t seed, const DepthRule& rule) {
  check_rule(rule);
  const auto kept = rule.cutoff_index + randrange(seed, rule.levels - rule.cutoff_index);
  return round_up(kept + 1, rule);
}

int64_t drawn_depth(const at::Tensor& rng, const DepthRule& rule) {
  check_rule(rule);
  const auto uniform =
      ops::random_uniform(rng, RandomPurpose::kQuantizeDropout, {1}, at::kDouble).item<double>();
  const auto range = static_cast<double>(rule.levels - rule.cutoff_index);
  return round_up(static_cast<int64_t>(uniform * range) + rule.cutoff_index + 1, rule);
}

}  // namespace torchvq::functional
