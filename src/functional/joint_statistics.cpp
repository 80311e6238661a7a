#include "functional/joint_statistics.h"

#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>

namespace torchvq::functional {
namespace {

at::Tensor exponents_of(int64_t size, int64_t exponent, at::Device device) {
  return at::full({1, size}, exponent, at::dtype(at::kInt).device(device));
}

}  // namespace

int64_t exponent_for(double largest) {
  return largest == 0 ? 0 : static_cast<int64_t>(std::ilogb(largest)) + 1;
}

at::Tensor sums_of_codes(const at::Tensor& x, const at::Tensor& codes, int64_t size,
                         int64_t exponent) {
  const auto exponents = exponents_of(size, exponent, x.device());
  auto [counts, sums, used] =
      ops::code_statistics(x.unsqueeze(0), codes.unsqueeze(0).contiguous(), exponents);
  TORCH_INTERNAL_ASSERT(at::equal(used, exponents));
  return sums;
}

at::Tensor decoded_sums(const at::Tensor& sums, int64_t exponent) {
  return ops::decode_sums(sums, exponents_of(sums.size(2), exponent, sums.device()),
                          at::kDouble)[0];
}

JointStatistics::JointStatistics(std::vector<int64_t> sizes, std::vector<int64_t> of_level,
                                 int64_t dim, int64_t exponent, at::Device device)
    : sizes_(std::move(sizes)), of_level_(std::move(of_level)), exponent_(exponent) {
  const auto integers = at::dtype(at::kLong).device(device);
  for (size_t a = 0; a < sizes_.size(); ++a) {
    for (size_t b = a; b < sizes_.size(); ++b) {
      pairs_.push_back(at::zeros({sizes_[a] * sizes_[b]}, integers));
    }
  }
  for (const auto codebook : of_level_) {
    sums_.push_back(at::zeros({1, 1, sizes_[static_cast<size_t>(codebook)], dim}, integers));
  }
}

void JointStatistics::add(const at::Tensor& x, const at::Tensor& codes) {
  for (int64_t p = 0; p < levels(); ++p) {
    const auto level = static_cast<size_t>(p);
    const auto a = of_level_[level];
    const auto first = codes.select(1, p);
    for (int64_t q = p; q < levels(); ++q) {
      const auto b = of_level_[static_cast<size_t>(q)];
      const auto second = codes.select(1, q);
      if (a <= b) add_pairs(a, first, b, second);
      // Two levels of one codebook count on both sides of the diagonal.
      if (b < a || (a == b && p != q)) add_pairs(b, second, a, first);
    }
    sums_[level] += sums_of_codes(x, first, sizes_[static_cast<size_t>(a)], exponent_);
  }
}

void JointStatistics::add_pairs(int64_t a, const at::Tensor& of_a, int64_t b,
                                const at::Tensor& of_b) {
  auto& counts = pairs_[place(a, b)];
  counts += (of_a * sizes_[static_cast<size_t>(b)] + of_b).bincount({}, counts.size(0));
}

size_t JointStatistics::place(int64_t a, int64_t b) const {
  return static_cast<size_t>(a * codebooks() - a * (a - 1) / 2 + b - a);
}

void JointStatistics::add_over(const distributed::Group& group) {
  if (group.alone()) return;
  // One at a time: a single buffer for all would need their memory again.
  for (const auto& pairs : pairs_) group.sum_(pairs, "counts of pairs of codes");
  for (const auto& sums : sums_) group.sum_(sums, "sums of codes");
}

at::Tensor JointStatistics::pairs(int64_t a, int64_t b) const {
  return pairs_[place(a, b)].view({sizes_[static_cast<size_t>(a)], sizes_[static_cast<size_t>(b)]});
}

at::Tensor JointStatistics::sums(int64_t level) const {
  return decoded_sums(sums_[static_cast<size_t>(level)], exponent_);
}

}  // namespace torchvq::functional
