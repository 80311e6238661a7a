#include <torchvq/functional/quantize_depth.h>

#include <algorithm>
#include <bit>
#include <random>
#include <utility>
#include <vector>

#include <torch/library.h>

#include <torchvq/ops/random_numbers.h>

namespace torchvq::functional {
namespace {

/// The state of MT19937 for a key of any length, as its authors and Python's random.seed compute it;
/// std::mt19937 takes the words as they are.
class KeySequence {
 public:
  using result_type = uint32_t;

  explicit KeySequence(std::vector<uint32_t> key) : key_(std::move(key)) {}

  void generate(uint32_t* state, const uint32_t* end) const {
    const auto size = static_cast<size_t>(end - state);
    const auto mixed = [&](size_t i) { return state[i - 1] ^ (state[i - 1] >> 30); };
    state[0] = 19650218U;
    for (size_t i = 1; i < size; ++i) state[i] = 1812433253U * mixed(i) + static_cast<uint32_t>(i);
    size_t i = 1, j = 0;
    const auto advance = [&] {
      if (++i < size) return;
      state[0] = state[size - 1];
      i = 1;
    };
    for (size_t k = std::max(size, key_.size()); k > 0; --k) {
      state[i] = (state[i] ^ (mixed(i) * 1664525U)) + key_[j] + static_cast<uint32_t>(j);
      advance();
      j = j + 1 == key_.size() ? 0 : j + 1;
    }
    for (size_t k = size - 1; k > 0; --k) {
      state[i] = (state[i] ^ (mixed(i) * 1566083941U)) - static_cast<uint32_t>(i);
      advance();
    }
    state[0] = 0x80000000U;
  }

 private:
  std::vector<uint32_t> key_;
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
  KeySequence sequence(std::move(key));
  std::mt19937 draw(sequence);
  const int bits = std::bit_width(static_cast<uint64_t>(count));
  uint32_t value = 0;
  do {
    value = static_cast<uint32_t>(draw()) >> (32 - bits);
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

/// drawn_depth() as a 0-d int64 tensor, for devices that would have to be waited for.
at::Tensor depth_of_step(const at::Tensor& rng, const DepthRule& rule) {
  check_rule(rule);
  const auto uniform = ops::random_numbers(rng, RandomPurpose::kQuantizeDropout,
                                           Distribution::kUniform, {1}, at::kDouble)[0];
  const auto range = static_cast<double>(rule.levels - rule.cutoff_index);
  const auto depth = uniform.mul(range).to(at::kLong).add(rule.cutoff_index + 1);
  const auto multiple = rule.multiple_of;
  return depth.add(multiple - 1).floor_divide(multiple).mul(multiple).clamp_max(rule.levels);
}

}  // namespace

int64_t seeded_depth(int64_t seed, const DepthRule& rule) {
  check_rule(rule);
  const auto kept = rule.cutoff_index + randrange(seed, rule.levels - rule.cutoff_index);
  return round_up(kept + 1, rule);
}

int64_t drawn_depth(const at::Tensor& rng, const DepthRule& rule) {
  return depth_of_step(rng, rule).item<int64_t>();
}

namespace {

at::Tensor drawn_depth_op(const at::Tensor& rng, int64_t levels, int64_t cutoff_index,
                          int64_t multiple_of) {
  return depth_of_step(rng, {levels, cutoff_index, multiple_of});
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("drawn_depth(Tensor rng, int levels, int cutoff_index, int multiple_of) -> Tensor",
        TORCH_FN(torchvq::functional::drawn_depth_op));
}
