// Directional reparametrisation of one token in two passes over its row, with norms in float64.
// Rows are contiguous; no alignment is assumed. Memory-bound.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/lanes.h"

namespace torchvq::kernels {

inline double inverse_or_zero(double value) { return value == 0.0 ? 0.0 : 1.0 / value; }

template <typename T>
void directional_reparam_row(const T* x, const T* code, const T* noise, double deviation, T* result,
                             int64_t dim) {
  LaneSum dd, vv;
  for_each_lane(dim, [&](int64_t i, int64_t l) {
    const double d = static_cast<double>(code[i]) - x[i];
    const double v = d + deviation * noise[i];
    dd.lane[l] += d * d;
    vv.lane[l] += v * v;
  });
  const double step = std::sqrt(dd.total()) * inverse_or_zero(std::sqrt(vv.total()));
  for (int64_t i = 0; i < dim; ++i) {
    const double d = static_cast<double>(code[i]) - x[i];
    result[i] = static_cast<T>(x[i] + step * (d + deviation * noise[i]));
  }
}

template <typename T>
void directional_reparam_backward_row(const T* grad, const T* x, const T* code, const T* noise,
                                      double deviation, T* grad_x, T* grad_code, int64_t dim) {
  LaneSum dd, vv, gv;
  for_each_lane(dim, [&](int64_t i, int64_t l) {
    const double d = static_cast<double>(code[i]) - x[i];
    const double v = d + deviation * noise[i];
    dd.lane[l] += d * d;
    vv.lane[l] += v * v;
    gv.lane[l] += grad[i] * v;
  });
  const double distance = inverse_or_zero(std::sqrt(dd.total()));
  const double along = gv.total() * inverse_or_zero(std::sqrt(vv.total())) * distance;
  for (int64_t i = 0; i < dim; ++i) {
    const double d = (static_cast<double>(code[i]) - x[i]) * along;
    grad_x[i] = static_cast<T>(grad[i] - d);
    grad_code[i] = static_cast<T>(d);
  }
}

}  // namespace torchvq::kernels
