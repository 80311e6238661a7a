#include "functional/joint_statistics.h"

#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
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

JointStatistics::JointStatistics(std::vector<int64_t> sizes, int64_t dim, int64_t exponent,
                                 at::Device device)
    : sizes_(std::move(sizes)), exponent_(exponent) {
  const auto integers = at::dtype(at::kLong).device(device);
  for (size_t p = 0; p < sizes_.size(); ++p) {
    for (size_t q = p; q < sizes_.size(); ++q) {
      pairs_.push_back(at::zeros({sizes_[p] * sizes_[q]}, integers));
    }
    sums_.push_back(at::zeros({1, 1, sizes_[p], dim}, integers));
  }
}

void JointStatistics::add(const at::Tensor& x, const at::Tensor& codes) {
  size_t pair = 0;
  for (int64_t p = 0; p < levels(); ++p) {
    const auto first = codes.select(1, p);
    for (int64_t q = p; q < levels(); ++q, ++pair) {
      const auto size = sizes_[static_cast<size_t>(q)];
      pairs_[pair] += (first * size + codes.select(1, q)).bincount({}, pairs_[pair].size(0));
    }
    const auto level = static_cast<size_t>(p);
    sums_[level] += sums_of_codes(x, first, sizes_[level], exponent_);
  }
}

void JointStatistics::add_over(const distributed::Group& group) {
  if (group.alone()) return;
  // One at a time: a single buffer for all would need their memory again.
  for (const auto& pairs : pairs_) group.sum_(pairs, "counts of pairs of codes");
  for (const auto& sums : sums_) group.sum_(sums, "sums of codes");
}

at::Tensor JointStatistics::pairs(int64_t p, int64_t q) const {
  const auto before = p * levels() - p * (p - 1) / 2;
  const auto rows = sizes_[static_cast<size_t>(p)], columns = sizes_[static_cast<size_t>(q)];
  return pairs_[static_cast<size_t>(before + q - p)].view({rows, columns});
}

at::Tensor JointStatistics::sums(int64_t level) const {
  return decoded_sums(sums_[static_cast<size_t>(level)], exponent_);
}

}  // namespace torchvq::functional
