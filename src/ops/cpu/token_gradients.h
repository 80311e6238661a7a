// Gradients of an estimator to the tokens, with the gradient of the commitment loss added if wanted.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>

#include "kernels/cpu/token_rows.h"
#include "kernels/rotation_trick.h"

namespace torchvq::detail {

/// Contiguous rows of the same dtype.
template <typename T>
struct TokenRows {
  const T* grad;
  const T* x;
  const T* codes;
  int64_t rows;
  int64_t dim;
  const bool* mask = nullptr;   ///< null: all rows are real
  bool passes_padding = false;  ///< whether padding gets `grad` as it is; otherwise 0
};

/// dx of the rotation trick or, without `rotates`, of straight-through. `commitment`: the factor of
/// x - codes to add, or null.
template <typename T>
void write_token_gradients(const TokenRows<T>& from, bool rotates, const T* commitment, T* to) {
  const auto kernel = kernels::token_rows_kernel<T>(kernels::cpu_level());
  const int64_t dim = from.dim;
  at::parallel_for(0, from.rows, 16384 / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * dim;
      if (from.mask != nullptr && !from.mask[row]) {
        if (from.passes_padding) {
          std::copy_n(from.grad + at, dim, to + at);
        } else {
          std::fill_n(to + at, dim, T(0));
        }
        continue;
      }
      const T *grad = from.grad + at, *x = from.x + at, *code = from.codes + at;
      kernels::RotationWeights weights;
      if (rotates) {
        const auto [xx, cc, xc, gx, gc] = kernel.products(grad, x, code, dim);
        weights = kernels::rotation_weights(xx, cc, xc, gx, gc);
      }
      kernel.gradient({weights.grad, weights.token, weights.code, commitment}, grad, x, code, dim,
                      to + at);
    }
  });
}

}  // namespace torchvq::detail
