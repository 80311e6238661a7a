// Packs rows and codes for the screening kernels, and computes the norms and hashes of
// codes that packing needs.
#pragma once

#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

// A tile of kTileRows x kVectors accumulators, kVectors vectors of codes and one row value
// together fill the registers.
constexpr int kTileRows = 6;
constexpr int kVectors = kRegisters == 32 ? 4 : 2;
constexpr int kPanel = kVectors * kLanes;

/// Loads the first `count` floats of `from` and zeroes the other lanes; reads a whole vector where
/// that stays before `end`.
inline Floats load_partly(const float* from, const float* end, int64_t count, Ints mask) {
  if (from + kLanes <= end)
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(load<Floats>(from)) & mask);
  float padded[kLanes] = {};
  memcpy(padded, from, sizeof(float) * static_cast<size_t>(count));
  return load<Floats>(padded);
}

inline Ints first_lanes(int64_t count) {
  Ints mask{};
  for (int l = 0; l < kLanes; ++l) mask[l] = l < count ? -1 : 0;
  return mask;
}

inline Words mix(Words hash, Floats value) {
  const Ints nonzero = value != 0.0f;  // 0 and -0 are the same value with different bits
  hash = (hash ^ reinterpret_cast<Words>(reinterpret_cast<Ints>(value) & nonzero)) * 0x9E3779B1u;
  return hash ^ (hash >> 15);
}

/// Squared norms and hashes of `count` codes from k on, interleaved: each is a chain
/// of dependent operations.
template <int count>
void facts_of(const CodeList& codes, int64_t k, float* squares, uint32_t* hash) {
  const int64_t dim = codes.dim, left = dim % kLanes;
  const Ints mask = first_lanes(left);
  const float* code = codes.codebook + k * dim;
  Floats sum[count] = {};
  Words lanes[count] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int i = 0; i < count; ++i) {
      const Floats value = load<Floats>(code + i * dim + d);
      sum[i] += value * value;
      lanes[i] = mix(lanes[i], value);
    }
  }
  Words weights{};
  for (int l = 0; l < kLanes; ++l) weights[l] = (2 * l + 1) * 0x85EBCA6Bu;
  for (int i = 0; i < count; ++i) {
    if (left > 0) {
      const Floats value = load_partly(code + i * dim + d, codes.end, left, mask);
      sum[i] += value * value;
      lanes[i] = mix(lanes[i], value);
    }
    lanes[i] *= weights;
    squares[k + i] = sum_lanes<float, kLanes>(sum[i]);
    hash[k + i] = sum_lanes<uint32_t, kLanes>(lanes[i] ^ (lanes[i] >> 13));
  }
}

void code_facts(const CodeList& codes, int64_t begin, int64_t end, float* squares, uint32_t* hash) {
  constexpr int kTogether = 4;
  int64_t k = begin;
  for (; k + kTogether <= end; k += kTogether) facts_of<kTogether>(codes, k, squares, hash);
  for (; k < end; ++k) facts_of<1>(codes, k, squares, hash);
}

void add_codes(const CodeList& codes, int64_t begin, int64_t end, float* sum) {
  for (int64_t i = begin; i < end; ++i) {
    const float* code = codes.codebook + codes.index[i] * codes.dim;
    for (int64_t d = 0; d < codes.dim; ++d) sum[d] += code[d];
  }
}

/// Transposes values [d, d + kLanes) of kLanes codes. Lanes beyond dim hold whatever follows in
/// memory and are not stored.
inline void transpose_block(const float* const* code, const float* center, int64_t d, int64_t dim,
                            float* values) {
  Floats block[kLanes];
  const Floats middle = load<Floats>(center + d);
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) block[j] = load<Floats>(code[j] + d) - middle;
  transpose(block);
  const int64_t count = dim - d < kLanes ? dim - d : kLanes;
  if (count == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) store(values + (d + i) * kPanel, block[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) store(values + (d + i) * kPanel, block[i]);
  }
}

/// Copies the codes of one panel minus center, transposed; lanes without a code are zero.
void transpose_panel(const CodeList& codes, const float* center, int64_t panel, float* values) {
  const int64_t first = panel * kPanel, dim = codes.dim;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const int64_t left = codes.count - first - lane;
    const int64_t count = left < 0 ? 0 : left < kLanes ? left : kLanes;
    const float* code[kLanes];
    int64_t d = 0;
    for (int64_t j = 0; j < count; ++j)
      code[j] = codes.codebook + codes.index[first + lane + j] * dim;
    // Indices ascend, so only the last code can come close to the end of the codebook.
    for (; count == kLanes && d < dim && code[kLanes - 1] + d + kLanes <= codes.end; d += kLanes) {
      transpose_block(code, center, d, dim, values + lane);
    }
    for (; d < dim; ++d) {
      float* to = values + d * kPanel + lane;
      for (int64_t j = 0; j < count; ++j) to[j] = code[j][d] - center[d];
      for (int64_t j = count; j < kLanes; ++j) to[j] = 0.0f;
    }
  }
}

/// Squared norms of a panel's codes: float64 sums over d in index order, as the contract defines a
/// norm.
void panel_squares(const float* values, int64_t dim, double* squares) {
  constexpr int kParts = kPanel / kHalfLanes;
  Doubles sum[kParts];
  for (int p = 0; p < kParts; ++p) sum[p] = Doubles{};
  for (int64_t d = 0; d < dim; ++d) {
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) {
      const Doubles value = widen(values + d * kPanel + p * kHalfLanes);
      sum[p] += value * value;  // the product is exact, so that fused or not gives the same bits
    }
  }
  for (int p = 0; p < kParts; ++p) store(squares + p * kHalfLanes, sum[p]);
}

void pack_codes(const CodeList& codes, const float* center, int64_t depth, int64_t begin,
                int64_t end, float* panels, double* squares) {
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

void pack_unit_codes(const CodeList& codes, const float* zero, int64_t depth, int64_t begin,
                     int64_t end, float* panels, double* squares) {
  for (int64_t panel = begin; panel < end; ++panel) {
    float* values = panels + panel * kPanel * depth;
    double* norms = squares + panel * kPanel;
    transpose_panel(codes, zero, panel, values);
    panel_squares(values, codes.dim, norms);
    for (int j = 0; j < kPanel; ++j) norms[j] = sqrt(norms[j]);
    for (int64_t d = 0; d < codes.dim; ++d) {
      float* at = values + d * kPanel;
      for (int j = 0; j < kPanel; j += kHalfLanes) divide(at + j, at + j, load<Doubles>(norms + j));
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
  for (; d + kHalfLanes <= dim; d += kHalfLanes) {
    const HalfFloats value = load<HalfFloats>(row + d) - load<HalfFloats>(center + d);
    store(packed + d, value);
    const Doubles wide = __builtin_convertvector(value, Doubles);
    sum += wide * wide;
  }
  double square = sum_lanes<double, kHalfLanes>(sum);
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

void pack_rows(const float* const* rows, int64_t count, int64_t dim, const float* center,
               int64_t depth, float* packed, double* squares) {
  for (int64_t r = 0; r < count; ++r)
    squares[r] = pack_row(rows[r], dim, center, depth, packed + r * depth);
}

/// Divides one row by its norm; returns the squared norm of the result, within the rounding
/// that the bound allows for.
double pack_unit_row(const float* row, int64_t dim, int64_t depth, double square, float* packed) {
  if (!(square < INFINITY)) {
    memset(packed, 0, sizeof(float) * static_cast<size_t>(depth));
    return square;
  }
  const double norm = sqrt(square);
  int64_t d = 0;
  for (; d + kHalfLanes <= dim; d += kHalfLanes) divide(packed + d, row + d, Doubles{} + norm);
  for (; d < dim; ++d) packed[d] = norm == 0.0 ? 0.0f : static_cast<float>(row[d] / norm);
  append_norm(dim, depth, 1.0, packed);
  return norm == 0.0 ? 0.0 : 1.0 + 1e-6;
}

void pack_unit_rows(const float* const* rows, int64_t count, int64_t dim, int64_t depth,
                    float* packed, double* squares) {
  for (int64_t r = 0; r < count; ++r) squares[r] = 0.0;
  // Rows are interleaved: each sum is a chain of dependent additions in index order.
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
