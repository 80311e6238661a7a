// Scores of tokens against all codes of one head, and their gradient, computed for a block of
// tokens at a time, so that N x K is never allocated: shared by cross-entropy commitment,
// codebook diversity and sampling.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

/// Formula   euclidean: l[n, k] = -|x_n - c_k|; cosine: l[n, k] = x_n.c_k / (max(|x_n|, e)
///           max(|c_k|, e)), e = 1e-12.
///
/// Euclidean scores come from |x|^2 - 2 x.c + |c|^2 with the mean of the codebook subtracted
/// from both sides, in the dtype of sum_dtype(): the expansion loses half of the digits, and an
/// offset of the data would lose the others. Differences below its rounding error count as 0,
/// where the gradient is 0 as well.
class CodeLogits {
 public:
  /// The part of one block of tokens that backward() needs.
  struct Block {
    at::Tensor logits;  ///< (n, K)
    at::Tensor tokens;  ///< (n, D): centred (euclidean) or of unit length (cosine)
    at::Tensor norms;   ///< (n, 1): norms of the tokens (cosine only)
  };

  /// @param codebook  (K, D), any floating dtype.
  CodeLogits(const at::Tensor& codebook, Metric metric);

  /// @param x  (n, D).
  Block forward(const at::Tensor& x) const;

  /// Returns the gradient of the tokens, (n, D), from the gradient of block.logits, in whose memory it works. `grad_codes`
  /// (K, D), if defined, accumulates the gradient of the codes; complete it with codes_gradient().
  at::Tensor backward(const Block& block, at::Tensor grad_logits, at::Tensor& grad_codes) const;

  at::Tensor codes_gradient(const at::Tensor& grad_codes) const;

  int64_t size() const { return codes_.size(0); }

 private:
  Metric metric_;
  at::Tensor codes_;   // (K, D): centred or of unit length
  at::Tensor norms_;   // euclidean: (1, K) squared norms; cosine: (K, 1) norms
  at::Tensor centre_;  // (1, D), euclidean only
};

/// Tokens per block, so that a block of scores roughly fits the caches
/// (CPU) or occupies the device.
int64_t tokens_per_block(const at::Tensor& codebook);

/// Rows scaled to unit length, and their original norms. Norms below 1e-12 count as 1e-12.
struct UnitRows {
  at::Tensor rows, norms;
};
UnitRows unit_rows_and_norms(const at::Tensor& rows);

/// Gradient of rows from the gradient of unit_rows_and_norms(rows).rows.
at::Tensor unit_rows_backward(const at::Tensor& grad, const UnitRows& unit);

}  // namespace torchvq::detail
