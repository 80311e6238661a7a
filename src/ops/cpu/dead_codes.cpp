#include "ops/cpu/dead_codes.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "detail/precision.h"
#include "detail/random_key.h"
#include "detail/row_keys.h"
#include "kernels/dead_code_order.h"

namespace torchvq::detail {
namespace {

/// A set of keys, which are random numbers already, by open addressing.
class KeySet {
 public:
  explicit KeySet(int64_t most)
      : slots_(std::bit_ceil(static_cast<size_t>(2 * most + 2)), kNoKey) {}

  void insert(int64_t key) { *place_of(key) = key; }
  bool contains(int64_t key) { return *place_of(key) == key; }

 private:
  int64_t* place_of(int64_t key) {
    size_t at = static_cast<size_t>(key) & (slots_.size() - 1);
    while (slots_[at] != kNoKey && slots_[at] != key) at = (at + 1) & (slots_.size() - 1);
    return &slots_[at];
  }

  std::vector<int64_t> slots_;  // kNoKey where empty
};

struct Head {
  const bool* dead;
  const int64_t* live_keys;
  int64_t codes;
  const int64_t* keys;
  int64_t candidates;
};

/// Positions of the first `wanted` candidates in the order of their keys that differ from each
/// other and from every live code.
std::vector<int64_t> first_candidates(const Head& head, int64_t wanted) {
  KeySet taken(head.codes + wanted);
  for (int64_t k = 0; k < head.codes; ++k) {
    if (!head.dead[k] && head.live_keys[k] != kNoKey) taken.insert(head.live_keys[k]);
  }
  std::vector<int64_t> heap;
  for (int64_t c = 0; c < head.candidates; ++c) {
    if (head.keys[c] != kNoKey) heap.push_back(c);
  }
  // Ties by position: among equal rows the first is taken.
  const auto later = [&](int64_t a, int64_t b) {
    return head.keys[a] != head.keys[b] ? head.keys[a] > head.keys[b] : a > b;
  };
  std::make_heap(heap.begin(), heap.end(), later);
  std::vector<int64_t> found;
  for (auto end = heap.end(); end != heap.begin() && std::ssize(found) < wanted; --end) {
    const int64_t c = heap.front();
    std::pop_heap(heap.begin(), end, later);
    if (taken.contains(head.keys[c])) continue;
    taken.insert(head.keys[c]);
    found.push_back(c);
  }
  return found;
}

/// The first `count` of `codes` in a random order, by ascending index. `first` is the place of the
/// head's first code.
void draw(std::vector<int64_t>& codes, int64_t count, uint64_t key, int64_t first) {
  if (count == std::ssize(codes)) return;
  const auto number = [&](int64_t code) { return kernels::dead_code_number(key, first + code); };
  std::nth_element(codes.begin(), codes.begin() + count, codes.end(), [&](int64_t a, int64_t b) {
    return number(a) != number(b) ? number(a) < number(b) : a < b;
  });
  codes.resize(static_cast<size_t>(count));
  std::sort(codes.begin(), codes.end());
}

at::Tensor as_indices(const std::vector<int64_t>& values) {
  auto indices = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), indices.mutable_data_ptr<int64_t>());
  return indices;
}

/// Gives the codes `taken` of head h the candidates at `positions`.
void write_codes(const DeadCodeState& state, int64_t h, const at::Tensor& taken,
                 const at::Tensor& rows, const at::Tensor& positions,
                 const at::Tensor& sizes_of_replaced) {
  // Adding 0 turns -0 into +0, which have one key.
  const auto codes =
      narrowed(rows[h].index_select(0, positions).add_(0), state.embed.scalar_type());
  const auto size = sizes_of_replaced[h].to(state.cluster_size.scalar_type());
  const double bound = largest(state.embed_avg.scalar_type());
  state.embed[h].index_copy_(0, taken, codes);
  state.embed_avg[h].index_copy_(
      0, taken, (codes * size).clamp_(-bound, bound).to(state.embed_avg.scalar_type()));
  state.cluster_size[h].index_fill_(0, taken, size[0]);
}

}  // namespace

at::Tensor replace_codes_on_cpu(const DeadCodeState& state, const DeadCodes& codes,
                                const at::Tensor& most, const at::Tensor& keys_,
                                const at::Tensor& rows, const at::Tensor& rng,
                                const DeadCodeArguments& arguments) {
  const auto dead = codes.dead.contiguous(), keys = keys_.contiguous();
  const auto sizes_of_replaced = codes.limits.clamp_min(arguments.reset_cluster_size);
  const int64_t heads = dead.size(0), size = dead.size(1), candidates = keys.size(1);
  const auto key = read_key(rng, static_cast<int64_t>(RandomPurpose::kDeadCodeCandidates),
                            kernels::kDeadCodeStream);
  // The state is converted to the dtype of the candidates, because keys depend on the dtype.
  const auto live_keys =
      row_keys(state.embed.to(rows.scalar_type()), rng, RandomPurpose::kDeadCodeCandidates);
  auto replaced = at::zeros({heads}, keys.options());
  for (int64_t h = 0; h < heads; ++h) {
    const Head head{dead.const_data_ptr<bool>() + h * size,
                    live_keys.const_data_ptr<int64_t>() + h * size, size,
                    keys.const_data_ptr<int64_t>() + h * candidates, candidates};
    std::vector<int64_t> taken;
    for (int64_t k = 0; k < size; ++k) {
      if (head.dead[k]) taken.push_back(k);
    }
    const auto positions = first_candidates(head, most.const_data_ptr<int64_t>()[h]);
    if (positions.empty()) continue;
    draw(taken, std::ssize(positions), key, h * size);
    write_codes(state, h, as_indices(taken), rows, as_indices(positions), sizes_of_replaced);
    replaced.mutable_data_ptr<int64_t>()[h] = std::ssize(taken);
  }
  return replaced;
}

}  // namespace torchvq::detail
