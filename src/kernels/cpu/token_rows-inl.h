// Source of the kernels of token_rows.h; included by one file per instruction set, which defines TORCHVQ_LEVEL_NAME.
// Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/doubles-inl.h"
#include "kernels/cpu/token_rows.h"

namespace torchvq::kernels {
namespace {

constexpr int64_t kSumLanes = 8;
constexpr int64_t kParts = kSumLanes / kHalfLanes;

/// LaneSum of lanes.h, whose functions have external linkage, which kernels of an instruction set must not share.
struct LaneSums {
  double lane[kSumLanes] = {};

  double total() const {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
};

template <typename T>
RowProducts products(const T* grad, const T* x, const T* code, int64_t dim) {
  Doubles sums[5][kParts] = {};
  const int64_t whole = dim / kSumLanes * kSumLanes;
  for (int64_t i = 0; i < whole; i += kSumLanes) {
#pragma GCC unroll 4
    for (int64_t p = 0; p < kParts; ++p) {
      const int64_t at = i + p * kHalfLanes;
      const Doubles g = widen(grad + at), a = widen(x + at), c = widen(code + at);
      sums[0][p] += a * a;
      sums[1][p] += c * c;
      sums[2][p] += a * c;
      sums[3][p] += g * a;
      sums[4][p] += g * c;
    }
  }
  LaneSums lanes[5];
  memcpy(lanes, sums, sizeof lanes);
  for (int64_t i = whole; i < dim; ++i) {
    const double g = grad[i], a = x[i], c = code[i];
    lanes[0].lane[i - whole] += a * a;
    lanes[1].lane[i - whole] += c * c;
    lanes[2].lane[i - whole] += a * c;
    lanes[3].lane[i - whole] += g * a;
    lanes[4].lane[i - whole] += g * c;
  }
  return {lanes[0].total(), lanes[1].total(), lanes[2].total(), lanes[3].total(), lanes[4].total()};
}

/// The part of the estimator: rotated, or straight.
template <typename T>
void estimate(const RowGradient<T>& factors, const T* grad, const T* x, const T* code, int64_t dim,
              T* to) {
  const int64_t whole = dim / kHalfLanes * kHalfLanes;
  if (factors.token == 0.0 && factors.code == 0.0) {
    for (int64_t i = 0; i < whole; i += kHalfLanes)
      store_as(to + i, factors.grad * widen(grad + i));
    for (int64_t i = whole; i < dim; ++i)
      to[i] = static_cast<T>(factors.grad * static_cast<double>(grad[i]));
    return;
  }
  const auto combined = [&](auto g, auto a, auto c) {
    return factors.grad * g + factors.token * a + factors.code * c;
  };
  for (int64_t i = 0; i < whole; i += kHalfLanes) {
    store_as(to + i, combined(widen(grad + i), widen(x + i), widen(code + i)));
  }
  for (int64_t i = whole; i < dim; ++i) {
    to[i] = static_cast<T>(combined(static_cast<double>(grad[i]), static_cast<double>(x[i]),
                                    static_cast<double>(code[i])));
  }
}

template <typename T>
void gradient(const RowGradient<T>& factors, const T* grad, const T* x, const T* code, int64_t dim,
              T* to) {
  estimate(factors, grad, x, code, dim, to);
  if (factors.commitment == nullptr) return;
  const T scale = *factors.commitment;
  for (int64_t i = 0; i < dim; ++i) to[i] = to[i] + (x[i] - code[i]) * scale;
}

template <typename T>
void add_squares(LaneSums& sum, const T* a, const T* c, int64_t dim) {
  const int64_t whole = dim / kSumLanes * kSumLanes;
  Doubles parts[kParts];
  memcpy(parts, sum.lane, sizeof parts);
  for (int64_t i = 0; i < whole; i += kSumLanes) {
#pragma GCC unroll 4
    for (int64_t p = 0; p < kParts; ++p) {
      const int64_t at = i + p * kHalfLanes;
      const Doubles difference = widen(a + at) - widen(c + at);
      parts[p] += difference * difference;
    }
  }
  memcpy(sum.lane, parts, sizeof parts);
  for (int64_t i = whole; i < dim; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(c[i]);
    sum.lane[i - whole] += difference * difference;
  }
}

template <typename T>
double squared_differences(const T* x, const T* codes, const bool* mask, int64_t begin, int64_t end,
                           int64_t dim) {
  LaneSums sum;
  for (int64_t row = begin; row < end; ++row) {
    if (mask == nullptr || mask[row]) add_squares(sum, x + row * dim, codes + row * dim, dim);
  }
  return sum.total();
}

/// Whether a row has neither infinities nor NaN: a sum of zeros times its values is zero.
template <typename T>
bool is_finite(const T* row, int64_t dim) {
  T zeros[kSumLanes] = {};
  const int64_t whole = dim / kSumLanes * kSumLanes;
  for (int64_t i = 0; i < whole; i += kSumLanes) {
    for (int64_t p = 0; p < kSumLanes; ++p) zeros[p] += row[i + p] * T(0);
  }
  for (int64_t i = whole; i < dim; ++i) zeros[i - whole] += row[i] * T(0);
  T zero = T(0);
  for (int64_t p = 0; p < kSumLanes; ++p) zero += zeros[p];
  return zero == T(0);
}

template <typename T>
void pass_level(const T* __restrict residual, const T* __restrict code, int64_t dim,
                T* __restrict sum, T* __restrict left) {
  for (int64_t i = 0; i < dim; ++i) {
    sum[i] += code[i];
    left[i] = residual[i] - code[i];
  }
}

template <typename T>
double commit(const CommittedRows<T>& rows, int64_t count, int64_t dim) {
  constexpr double kNothing = __builtin_nan("");
  LaneSums squares;
  for (int64_t row = 0; row < count; ++row) {
    const bool real = rows.mask == nullptr || rows.mask[row];
    const int64_t at = row * dim;
    const T* const residual = rows.residuals + at;
    if (is_finite(residual, dim)) {
      if (real) add_squares(squares, residual, rows.codes[row], dim);
      pass_level(residual, rows.codes[row], dim, rows.sums + at, rows.left + at);
      continue;
    }
    if (real) squares.lane[0] += kNothing;
    for (int64_t i = at; i < at + dim; ++i) {
      rows.sums[i] = static_cast<T>(kNothing);
      rows.left[i] = static_cast<T>(kNothing);
    }
  }
  return squares.total();
}

template <typename T>
TokenRowsOf<T> rows_of() {
  return {products<T>, gradient<T>, squared_differences<T>, commit<T>};
}

}  // namespace

TokenRowsKernel TORCHVQ_LEVEL_NAME(token_rows)() { return {rows_of<float>(), rows_of<double>()}; }

}  // namespace torchvq::kernels
