// Packing of rows and codes for the screening kernels, and the facts about codes that packing needs.
#pragma once

#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

// A tile of kTileRows x kVectors accumulators, kVectors code vectors and one row value fill the registers.
constexpr int kTileRows = 6;
constexpr int kVectors = kRegisters == 32 ? 4 : 2;
constexpr int kPanel = kVectors * kLanes;

inline uint32_t mix(uint32_t hash, uint32_t bits) {
  hash = (hash ^ bits) * 0x9E3779B1u;
  return hash ^ (hash >> 15);
}

void code_facts(const float* codebook, int64_t dim, int64_t begin, int64_t end, float* squares, uint32_t* hash) {
  for (int64_t k = begin; k < end; ++k) {
    const float* code = codebook + k * dim;
    Floats sum = Floats{};
    Words lanes = Words{};
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      const Floats value = load<Floats>(code + d);
      sum += value * value;
      const Ints is_zero = value == 0.0f;
      lanes = (lanes ^ (reinterpret_cast<Words>(value) & ~reinterpret_cast<Words>(is_zero))) * 0x9E3779B1u;
      lanes ^= lanes >> 15;
    }
    float square = sum_lanes<float, kLanes>(sum);
    uint32_t result = 0;
    for (int l = 0; l < kLanes && dim >= kLanes; ++l) result = mix(result, lanes[l]);
    for (; d < dim; ++d) {
      square += code[d] * code[d];
      const float value = code[d] == 0.0f ? 0.0f : code[d];
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      result = mix(result, bits);
    }
    squares[k] = square;
    hash[k] = result;
  }
}

void add_codes(const CodeList& codes, int64_t begin, int64_t end, float* sum) {
  for (int64_t i = begin; i < end; ++i) {
    const float* code = codes.codebook + codes.index[i] * codes.dim;
    for (int64_t d = 0; d < codes.dim; ++d) sum[d] += code[d];
  }
}

/// Copies the codes of one panel, transposed; lanes without a code are zero.
void transpose_panel(const CodeList& codes, const float* center, int64_t panel, float* values) {
  const int64_t first = panel * kPanel;
  const int64_t count = codes.count - first < kPanel ? codes.count - first : kPanel;
  const float* code[kPanel];
  for (int64_t j = 0; j < count; ++j) code[j] = codes.codebook + codes.index[first + j] * codes.dim;
  for (int64_t j = count; j < kPanel; ++j) code[j] = nullptr;
  for (int64_t d = 0; d < codes.dim; ++d) {
    const float middle = center ? center[d] : 0.0f;
    for (int64_t j = 0; j < count; ++j) values[d * kPanel + j] = code[j][d] - middle;
    for (int64_t j = count; j < kPanel; ++j) values[d * kPanel + j] = 0.0f;
  }
}

/// Squared norms of a panel's codes: float64 sums over d in index order, as the contract defines a norm.
void panel_squares(const float* values, int64_t dim, double* squares) {
  constexpr int kWide = kLanes / 2, kParts = kPanel / kWide;
  Doubles sum[kParts];
  for (int p = 0; p < kParts; ++p) sum[p] = Doubles{};
  for (int64_t d = 0; d < dim; ++d) {
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) {
      const Doubles value = widen(values + d * kPanel + p * kWide);
      sum[p] += value * value;  // the product is exact, so that fused or not gives the same bits
    }
  }
  for (int p = 0; p < kParts; ++p) store(squares + p * kWide, sum[p]);
}

void pack_codes(const CodeList& codes, const float* center, int64_t depth, int64_t begin, int64_t end, float* panels,
                double* squares) {
  for (int64_t panel = begin; panel < end; ++panel) {
    float* values = panels + panel * kPanel * depth;
    transpose_panel(codes, center, panel, values);
    panel_squares(values, codes.dim, squares + panel * kPanel);
  }
}

inline void divide(float* to, const float* from, Doubles norm) {
  const Doubles quotient = widen(from) / norm;
  store(to, __builtin_convertvector(norm == 0.0 ? Doubles{} : quotient, HalfFloats));
}

void pack_unit_codes(const CodeList& codes, int64_t depth, int64_t begin, int64_t end, float* panels,
                     double* squares) {
  constexpr int kWide = kLanes / 2;
  for (int64_t panel = begin; panel < end; ++panel) {
    float* values = panels + panel * kPanel * depth;
    double* norms = squares + panel * kPanel;
    transpose_panel(codes, nullptr, panel, values);
    panel_squares(values, codes.dim, norms);
    for (int j = 0; j < kPanel; ++j) norms[j] = sqrt(norms[j]);
    for (int64_t d = 0; d < codes.dim; ++d) {
      float* at = values + d * kPanel;
      for (int j = 0; j < kPanel; j += kWide) divide(at + j, at + j, load<Doubles>(norms + j));
    }
    panel_squares(values, codes.dim, norms);
  }
}

void append_norm(int64_t dim, int64_t depth, double square, float* packed) {
  if (depth > dim) packed[dim] = static_cast<float>(sqrt(square) * 1.000001);
}

double pack_row(const float* row, int64_t dim, const float* center, int64_t depth, float* packed) {
  Doubles sum = Doubles{};
  int64_t d = 0;
  constexpr int kWide = kLanes / 2;
  for (; d + kWide <= dim; d += kWide) {
    const HalfFloats value = load<HalfFloats>(row + d) - load<HalfFloats>(center + d);
    store(packed + d, value);
    const Doubles wide = __builtin_convertvector(value, Doubles);
    sum += wide * wide;
  }
  double square = sum_lanes<double, kWide>(sum);
  for (; d < dim; ++d) {
    packed[d] = row[d] - center[d];
    square += static_cast<double>(packed[d]) * packed[d];
  }
  if (!(square < INFINITY)) {
    memset(packed, 0, sizeof(float) * static_cast<size_t>(depth));
  } else {
    append_norm(dim, depth, square, packed);
  }
  return square;
}

void pack_rows(const float* const* rows, int64_t count, int64_t dim, const float* center, int64_t depth,
               float* packed, double* squares) {
  for (int64_t r = 0; r < count; ++r) squares[r] = pack_row(rows[r], dim, center, depth, packed + r * depth);
}

/// Divides one row by its norm; returns what its squared norm is now, within the rounding that the bound allows for.
double pack_unit_row(const float* row, int64_t dim, int64_t depth, double square, float* packed) {
  if (!(square < INFINITY)) {
    memset(packed, 0, sizeof(float) * static_cast<size_t>(depth));
    return square;
  }
  const double norm = sqrt(square);
  int64_t d = 0;
  for (; d + kLanes / 2 <= dim; d += kLanes / 2) divide(packed + d, row + d, Doubles{} + norm);
  for (; d < dim; ++d) packed[d] = norm == 0.0 ? 0.0f : static_cast<float>(row[d] / norm);
  append_norm(dim, depth, 1.0, packed);
  return norm == 0.0 ? 0.0 : 1.0 + 1e-6;
}

void pack_unit_rows(const float* const* rows, int64_t count, int64_t dim, int64_t depth, float* packed,
                    double* squares) {
  for (int64_t r = 0; r < count; ++r) squares[r] = 0.0;
  // All rows advance together: each sum is a chain of dependent additions in index order.
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t r = 0; r < count; ++r) {
      const double value = rows[r][d];
      squares[r] += value * value;
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    squares[r] = pack_unit_row(rows[r], dim, depth, squares[r], packed + r * depth);
  }
}

}  // namespace
}  // namespace torchvq::kernels
