// Packs rows and codes for the screening kernels, and computes the norms and hashes of
// codes that packing needs. Values of float64 are rounded to float32 after the centre is subtracted.
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

/// The width of a vector of T: half as many float64 as float32.
template <typename T>
constexpr int kWidth = static_cast<int>(sizeof(Floats) / sizeof(T));
template <typename T>
using VectorOfType = Vector<T, kWidth<T>>;

template <typename V>
inline V masked(V v, Ints mask) {
  return reinterpret_cast<V>(reinterpret_cast<Ints>(v) & mask);
}

/// Loads the first `count` values of `from` and zeroes the other lanes; reads a whole vector where
/// that stays before `end`.
template <typename T>
inline VectorOfType<T> load_partly(const T* from, const T* end, int64_t count, Ints mask) {
  using V = VectorOfType<T>;
  if (from + kWidth<T> <= end) return masked(load<V>(from), mask);
  T padded[kWidth<T>] = {};
  memcpy(padded, from, sizeof(T) * static_cast<size_t>(count));
  return load<V>(padded);
}

inline Ints first_lanes(int64_t count) {
  Ints mask{};
  for (int l = 0; l < kLanes; ++l) mask[l] = l < count ? -1 : 0;
  return mask;
}

template <typename V>
inline Words mix(Words hash, V value) {
  const auto nonzero = value != V{};  // 0 and -0 are the same value with different bits
  const V plain = masked(value, reinterpret_cast<Ints>(nonzero));
  hash = (hash ^ reinterpret_cast<Words>(plain)) * 0x9E3779B1u;
  return hash ^ (hash >> 15);
}

/// Squared norms and hashes of `count` codes from k on, interleaved: each is a chain
/// of dependent operations.
template <int count, typename T>
void facts_of(const CodeListOf<T>& codes, int64_t k, T* squares, uint32_t* hash) {
  using V = VectorOfType<T>;
  const int64_t dim = codes.dim, left = dim % kWidth<T>;
  const Ints mask = first_lanes(left * (kLanes / kWidth<T>));
  const T* code = codes.codebook + k * dim;
  V sum[count] = {};
  Words lanes[count] = {};
  int64_t d = 0;
  for (; d + kWidth<T> <= dim; d += kWidth<T>) {
    for (int i = 0; i < count; ++i) {
      const V value = load<V>(code + i * dim + d);
      sum[i] += value * value;
      lanes[i] = mix(lanes[i], value);
    }
  }
  Words weights{};
  for (int l = 0; l < kLanes; ++l) weights[l] = (2 * l + 1) * 0x85EBCA6Bu;
  for (int i = 0; i < count; ++i) {
    if (left > 0) {
      const V value = load_partly(code + i * dim + d, codes.end, left, mask);
      sum[i] += value * value;
      lanes[i] = mix(lanes[i], value);
    }
    lanes[i] *= weights;
    squares[k + i] = sum_lanes<T, kWidth<T>>(sum[i]);
    hash[k + i] = sum_lanes<uint32_t, kLanes>(lanes[i] ^ (lanes[i] >> 13));
  }
}

template <typename T>
void code_facts(const CodeListOf<T>& codes, int64_t begin, int64_t end, T* squares,
                uint32_t* hash) {
  constexpr int kTogether = 4;
  int64_t k = begin;
  for (; k + kTogether <= end; k += kTogether) facts_of<kTogether>(codes, k, squares, hash);
  for (; k < end; ++k) facts_of<1>(codes, k, squares, hash);
}

template <typename T>
void add_codes(const CodeListOf<T>& codes, int64_t begin, int64_t end, float* sum) {
  for (int64_t i = begin; i < end; ++i) {
    const T* code = codes.codebook + codes.index[i] * codes.dim;
    for (int64_t d = 0; d < codes.dim; ++d) sum[d] += static_cast<float>(code[d]);
  }
}

inline HalfFloats difference(const float* from, const float* center) {
  return load<HalfFloats>(from) - load<HalfFloats>(center);
}

inline HalfFloats difference(const double* from, const float* center) {
  return __builtin_convertvector(load<Doubles>(from) - widen(center), HalfFloats);
}

template <typename T>
inline float difference(T value, float center) {
  return static_cast<float>(value - static_cast<T>(center));
}

inline Floats join(HalfFloats low, HalfFloats high) {
  const HalfFloats half[2] = {low, high};
  Floats whole;
  memcpy(&whole, half, sizeof whole);
  return whole;
}

/// Values of a code, its lane in the panel given, minus the centre.
struct Centred {
  const float* center;

  Floats vector(const float* from, int64_t d, int64_t /*lane*/) const {
    return load<Floats>(from) - load<Floats>(center + d);
  }
  Floats vector(const double* from, int64_t d, int64_t /*lane*/) const {
    return join(difference(from, center + d),
                difference(from + kHalfLanes, center + d + kHalfLanes));
  }
  template <typename T>
  float value(T from, int64_t d, int64_t /*lane*/) const {
    return difference(from, center[d]);
  }
};

/// Values of a float64 code times a number of the code.
struct Scaled {
  const double* scales;

  Floats vector(const double* from, int64_t /*d*/, int64_t lane) const {
    const auto half = [&](const double* at) {
      return __builtin_convertvector(load<Doubles>(at) * scales[lane], HalfFloats);
    };
    return join(half(from), half(from + kHalfLanes));
  }
  float value(double from, int64_t /*d*/, int64_t lane) const {
    return static_cast<float>(from * scales[lane]);
  }
};

/// Transposes values [d, d + kLanes) of kLanes codes. Lanes beyond dim hold whatever follows in
/// memory and are not stored.
template <typename T, typename Read>
inline void transpose_block(const T* const* code, const Read& read, int64_t lane, int64_t d,
                            int64_t dim, float* values) {
  Floats block[kLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) block[j] = read.vector(code[j] + d, d, lane + j);
  transpose(block);
  const int64_t count = dim - d < kLanes ? dim - d : kLanes;
  if (count == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) store(values + (d + i) * kPanel, block[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) store(values + (d + i) * kPanel, block[i]);
  }
}

/// Copies the codes of one panel as `read` gives them, transposed; lanes without a code are zero.
template <typename T, typename Read>
void transpose_panel(const CodeListOf<T>& codes, const Read& read, int64_t panel, float* values) {
  const int64_t first = panel * kPanel, dim = codes.dim;
  for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
    const int64_t left = codes.count - first - lane;
    const int64_t count = left < 0 ? 0 : left < kLanes ? left : kLanes;
    const T* code[kLanes];
    int64_t d = 0;
    for (int64_t j = 0; j < count; ++j)
      code[j] = codes.codebook + codes.index[first + lane + j] * dim;
    // Indices ascend, so only the last code can come close to the end of the codebook.
    for (; count == kLanes && d < dim && code[kLanes - 1] + d + kLanes <= codes.end; d += kLanes) {
      transpose_block(code, read, lane, d, dim, values + lane);
    }
    for (; d < dim; ++d) {
      float* to = values + d * kPanel + lane;
      for (int64_t j = 0; j < count; ++j) to[j] = read.value(code[j][d], d, lane + j);
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

template <typename T>
void pack_codes(const CodeListOf<T>& codes, const float* center, int64_t depth, int64_t begin,
                int64_t end, float* panels, double* squares) {
  for (int64_t panel = begin; panel < end; ++panel) {
    float* values = panels + panel * kPanel * depth;
    transpose_panel(codes, Centred{center}, panel, values);
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
    transpose_panel(codes, Centred{zero}, panel, values);
    panel_squares(values, codes.dim, norms);
    for (int j = 0; j < kPanel; ++j) norms[j] = sqrt(norms[j]);
    for (int64_t d = 0; d < codes.dim; ++d) {
      float* at = values + d * kPanel;
      for (int j = 0; j < kPanel; j += kHalfLanes) divide(at + j, at + j, load<Doubles>(norms + j));
    }
    panel_squares(values, codes.dim, norms);
  }
}

/// The squared norm, in any order: the bound has room for it.
double square_of(const double* row, int64_t dim) {
  Doubles sum = Doubles{};
  int64_t d = 0;
  for (; d + kHalfLanes <= dim; d += kHalfLanes) {
    const Doubles value = load<Doubles>(row + d);
    sum += value * value;
  }
  double square = sum_lanes<double, kHalfLanes>(sum);
  for (; d < dim; ++d) square += row[d] * row[d];
  return square;
}

void pack_unit_wide_codes(const CodeListOf<double>& codes, const float* /*zero*/, int64_t depth,
                          int64_t begin, int64_t end, float* panels, double* squares) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * kPanel;
    double inverse[kPanel] = {};
    for (int64_t j = 0; j < kPanel && first + j < codes.count; ++j) {
      const double square =
          square_of(codes.codebook + codes.index[first + j] * codes.dim, codes.dim);
      if (square > 0) inverse[j] = 1 / sqrt(square);
    }
    float* values = panels + first * depth;
    transpose_panel(codes, Scaled{inverse}, panel, values);
    panel_squares(values, codes.dim, squares + first);
  }
}

void append_norm(int64_t dim, int64_t depth, double square, float* packed) {
  if (depth > dim) packed[dim] = static_cast<float>(sqrt(square) * 1.000001);
}

template <typename T>
double pack_row(const T* row, int64_t dim, const float* center, int64_t depth, float* packed) {
  Doubles sum = Doubles{};
  int64_t d = 0;
  for (; d + kHalfLanes <= dim; d += kHalfLanes) {
    const HalfFloats value = difference(row + d, center + d);
    store(packed + d, value);
    const Doubles wide = __builtin_convertvector(value, Doubles);
    sum += wide * wide;
  }
  double square = sum_lanes<double, kHalfLanes>(sum);
  for (; d < dim; ++d) {
    packed[d] = difference(row[d], center[d]);
    square += static_cast<double>(packed[d]) * packed[d];
  }
  if (!(square < INFINITY)) {
    memset(packed, 0, sizeof(float) * static_cast<size_t>(depth));
  } else {
    append_norm(dim, depth, square, packed);
  }
  return square;
}

template <typename T>
void pack_rows(const T* const* rows, int64_t count, int64_t dim, const float* center, int64_t depth,
               float* packed, double* squares) {
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

void pack_unit_wide_rows(const double* const* rows, int64_t count, int64_t dim, int64_t depth,
                         float* packed, double* squares) {
  for (int64_t r = 0; r < count; ++r) {
    const double square = square_of(rows[r], dim);
    const bool usable = square == 0 || (square > kLeastWideSquare && square < kMostWideSquare);
    squares[r] = !usable ? INFINITY : square == 0 ? 0.0 : 1.0 + 1e-6;
    const double inverse = usable && square > 0 ? 1 / sqrt(square) : 0.0;
    float* const to = packed + r * depth;
    for (int64_t d = 0; d < dim; ++d) {
      to[d] = usable ? static_cast<float>(rows[r][d] * inverse) : 0.0F;
    }
    append_norm(dim, depth, usable ? 1.0 : 0.0, to);
  }
}

template <typename T>
void set_packing(NearestCodeReader<T>& table) {
  table.code_facts = code_facts<T>;
  table.add_codes = add_codes<T>;
  table.pack_codes = pack_codes<T>;
  table.pack_rows = pack_rows<T>;
}

}  // namespace
}  // namespace torchvq::kernels
