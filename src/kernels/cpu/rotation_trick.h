// Gradient of the rotation trick for one token, in two passes over its row.
//
// With R = I - 2 r r^T + 2 q e^T and r = (e + q) / |e + q|, R^T g is a combination of g, x and c:
//   R^T g = g + (2 g.q - k) e - k q,  k = (g.e + g.q) / (1 + e.q)
// so five dot products and one linear combination replace the matrix. Memory-bound from D = 32 up.
// Rows are contiguous, no alignment is assumed.
#pragma once

#include <cstdint>

#include "kernels/cpu/lanes.h"
#include "kernels/rotation_trick.h"

namespace torchvq::kernels {

template <typename T>
void rotation_trick_backward_row(const T* grad, const T* x, const T* code, T* grad_x, int64_t dim) {
  LaneSum xx, cc, xc, gx, gc;
  for_each_lane(dim, [&](int64_t i, int64_t l) {
    const double g = grad[i], a = x[i], b = code[i];
    xx.lane[l] += a * a;
    cc.lane[l] += b * b;
    xc.lane[l] += a * b;
    gx.lane[l] += g * a;
    gc.lane[l] += g * b;
  });
  const auto weights = rotation_weights(xx.total(), cc.total(), xc.total(), gx.total(), gc.total());
  if (weights.token == 0.0 && weights.code == 0.0) {
    // Not 0 * x: a token with a straight-through gradient may be infinite.
    for (int64_t i = 0; i < dim; ++i) grad_x[i] = static_cast<T>(weights.grad * grad[i]);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) {
    grad_x[i] =
        static_cast<T>(weights.grad * grad[i] + weights.token * x[i] + weights.code * code[i]);
  }
}

}  // namespace torchvq::kernels
