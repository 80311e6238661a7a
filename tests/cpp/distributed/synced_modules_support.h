// Options and batches of the tests of modules on several ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <torchvq/options/vector_quantize.h>

namespace torchvq::testing {

using Configure = std::function<void(VectorQuantizeOptions&)>;

constexpr int64_t kDim = 6;

inline VectorQuantizeOptions options_with(const Configure& configure,
                                          const std::optional<std::string>& group) {
  auto options = VectorQuantizeOptions(kDim).codebook_size(24).process_group(group);
  configure(options);
  return options;
}

struct Batch {
  torch::Tensor x, mask;
};

/// The tokens of each rank: unequal, none, all of them; in every third step the last rank has only
/// padding.
inline std::vector<Batch> batch_of(int step, int size) {
  static const std::vector<std::vector<int64_t>> kShares = {
      {20, 31, 9}, {0, 40, 20}, {60, 0, 0}, {13, 13, 14}};
  auto shares = kShares[step % kShares.size()];
  if (size == 2) shares = {shares[0], shares[1] + shares[2]};
  const auto generator = at::detail::createCPUGenerator(step);
  std::vector<Batch> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const auto x = torch::randn({1, shares[rank], kDim}, generator);
    auto mask = torch::rand({1, shares[rank]}, generator) < 0.8;
    if (step % 3 == 2 && rank == size - 1) mask = torch::zeros_like(mask);
    ranks.push_back({x, mask});
  }
  return ranks;
}

inline Batch joined(const std::vector<Batch>& ranks) {
  std::vector<torch::Tensor> x, mask;
  for (const auto& rank : ranks) {
    x.push_back(rank.x);
    mask.push_back(rank.mask);
  }
  return {torch::cat(x, 1), torch::cat(mask, 1)};
}

}  // namespace torchvq::testing
