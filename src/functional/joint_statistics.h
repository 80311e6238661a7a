// Statistics of vectors and their codes for a joint refit of codebooks: exact integers.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"

namespace torchvq::functional {

/// The exponent for fixed-point sums of vectors with magnitudes up to `largest`. It is never
/// raised, so sums do not depend on the order of additions.
int64_t exponent_for(double largest);

/// Fixed-point sums (1, 1, K, D) of the rows of x (N, D) by code (N,); see ops/code_statistics.h.
at::Tensor sums_of_codes(const at::Tensor& x, const at::Tensor& codes, int64_t size,
                         int64_t exponent);

/// These sums as float64 (K, D).
at::Tensor decoded_sums(const at::Tensor& sums, int64_t exponent);

/// Counts how often codes of two codebooks occur together, and sums the vectors of each code.
class JointStatistics {
 public:
  /// @param sizes     codes of each codebook.
  /// @param of_level  the codebook of each level; levels may share one.
  /// @param exponent  see exponent_for().
  JointStatistics(std::vector<int64_t> sizes, std::vector<int64_t> of_level, int64_t dim,
                  int64_t exponent, at::Device device);

  /// @param x      (N, D), finite.
  /// @param codes  (N, Q), int64.
  void add(const at::Tensor& x, const at::Tensor& codes);

  /// Replaces all statistics by their sums over all ranks.
  void add_over(const distributed::Group& group);

  int64_t codebooks() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t levels() const { return static_cast<int64_t>(of_level_.size()); }
  /// How often vectors have code k of codebook a and code l of codebook b >= a, over all pairs of
  /// their levels: (K_a, K_b), int64.
  at::Tensor pairs(int64_t a, int64_t b) const;
  /// The sum of the vectors of each code of a level: (K, D), float64.
  at::Tensor sums(int64_t level) const;

 private:
  /// Adds pairs of codes (N,) of codebooks a <= b.
  void add_pairs(int64_t a, const at::Tensor& of_a, int64_t b, const at::Tensor& of_b);
  size_t place(int64_t a, int64_t b) const;

  std::vector<int64_t> sizes_, of_level_;
  int64_t exponent_;
  std::vector<at::Tensor> pairs_;  // of codebooks (0, 0), (0, 1), ..., (1, 1), ...
  std::vector<at::Tensor> sums_;   // of levels
};

}  // namespace torchvq::functional
