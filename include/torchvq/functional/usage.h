// The use of a codebook.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>

#include <cstdint>

namespace torchvq::functional {

struct CodebookUsage {
  int64_t codebook_size = 0;
  int64_t used_codes = 0;  ///< codes with at least one token
  double usage = 0;        ///< used_codes / codebook_size
  /// Of the codes' frequencies: what an ideal entropy coder would spend on a token.
  double entropy_bits = 0;
  /// 2 ^ entropy_bits: the number of equally likely codes that would be as varied.
  double perplexity = 0;
  double bits_per_vector = 0;  ///< log2(codebook_size): what a token costs without entropy coding
};

/// Measures how tokens spread over codes.
///
/// Formula   entropy = -sum_k p[k] log2 p[k], with p = counts / sum(counts)
///
/// @param counts  (K,), tokens per code: integer, or floating point (moving averages), none
///                negative. K >= 1.
///
/// Empty        no tokens give 0 used codes, entropy 0 and perplexity 0.
/// Precision    float64, in code order.
/// Throws       c10::ValueError for another shape, a count that is negative or not finite.
TORCHVQ_API CodebookUsage codebook_usage(const at::Tensor& counts);

}  // namespace torchvq::functional
