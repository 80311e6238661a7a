// Scores of one row and the codes of a codebook as they lie, for so few rows that packing would cost more than the
// scan. Included by nearest_code_scan-inl.h.
#pragma once

namespace torchvq::kernels {
namespace {

/// Where the last vector of a row begins, and a mask of its lanes that no
/// earlier vector has covered.
struct Tail {
  int64_t begin;
  Ints mask;
};

template <typename T>
Tail tail_of(int64_t dim) {
  const int64_t whole = dim / kWidth<T> * kWidth<T>;
  Tail tail = {dim < kWidth<T> ? 0 : dim - kWidth<T>, Ints{}};
  for (int l = 0; l < kLanes; ++l) {
    const int64_t d = tail.begin + l * kWidth<T> / kLanes;
    tail.mask[l] = d >= whole && d < dim ? -1 : 0;
  }
  return tail;
}

/// A row and, padded with zeros, its last vector.
template <typename T>
struct Row {
  Row(const T* row, int64_t row_dim) : values(row), dim(row_dim), tail(tail_of<T>(row_dim)) {
    T padded[kWidth<T>] = {};
    memcpy(padded, row + tail.begin,
           sizeof(T) * static_cast<size_t>(dim < kWidth<T> ? dim : kWidth<T>));
    last = load<VectorOfType<T>>(padded);
  }

  const T* values;
  int64_t dim;
  Tail tail;
  VectorOfType<T> last;
};

// Codes in flight: enough chains of dependent additions to fill the pipeline.
constexpr int kTogether = 8;
// Prefetch distance in bytes. Each code of a tile is a stream of its own that is read once, so the
// processor does not see that the codes are adjacent in memory.
constexpr int kAhead = 8192;
constexpr int kCacheLine = 64;

/// Calls add(code, values of the code, values of the row) for every vector of `count` codes; lanes beyond a code are
/// zero in both.
template <int count, typename T, typename Add>
inline void over_codes(const Row<T>& row, const T* codes, const Add& add) {
  using V = VectorOfType<T>;
  constexpr int kOfLine = kCacheLine / sizeof(T), kFurther = kAhead / sizeof(T);
  for (int64_t d = 0; d + kWidth<T> <= row.dim; d += kWidth<T>) {
    const V value = load<V>(row.values + d);
#pragma GCC unroll 8
    for (int i = 0; i < count * kWidth<T>; i += kOfLine) {
      __builtin_prefetch(codes + count * d + kFurther + i);
    }
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) add(j, load<V>(codes + j * row.dim + d), value);
  }
  if (row.dim % kWidth<T> == 0) return;
  const V value = masked(row.last, row.tail.mask);
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) {
    add(j, masked(load<V>(codes + j * row.dim + row.tail.begin), row.tail.mask), value);
  }
}

/// Calls score(codes, k) for `together` codes from k on, or score_one for a single one, and hands a copy to it where a
/// vector would read past the codebook.
template <int together, typename T, typename Score, typename ScoreOne>
inline void over_codebook(const T* codebook, int64_t size, int64_t dim, int64_t begin, int64_t end,
                          const Score& score, const ScoreOne& score_one) {
  // A vector load may read past a short code, but not past the codebook.
  int64_t readable = dim < kWidth<T> ? (size * dim - kWidth<T>) / dim + 1 : size;
  if (size * dim < kWidth<T>) readable = 0;
  const int64_t whole = end < readable ? end : readable;
  int64_t k = begin;
  for (; k + together <= whole; k += together) score(codebook + k * dim, k);
  for (; k < whole; ++k) score_one(codebook + k * dim, k);
  for (; k < end; ++k) {
    T code[kWidth<T>] = {};
    memcpy(code, codebook + k * dim, sizeof(T) * static_cast<size_t>(dim));
    score_one(code, k);
  }
}

template <int count, typename T>
inline void negative_distances(const Row<T>& row, const T* codes, float* scores) {
  using V = VectorOfType<T>;
  V sum[count];
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sum[j] = V{};
  over_codes<count>(row, codes, [&](int j, V code, V value) {
    const V difference = code - value;
    sum[j] += difference * difference;
  });
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) {
    scores[j] = static_cast<float>(-sum_lanes<T, kWidth<T>>(sum[j]));
  }
}

template <typename T>
void score_row(const T* values, int64_t dim, const T* codebook, int64_t size, int64_t begin,
               int64_t end, float* scores) {
  const Row<T> row(values, dim);
  over_codebook<kTogether>(
      codebook, size, dim, begin, end,
      [&](const T* codes, int64_t k) { negative_distances<kTogether>(row, codes, scores + k); },
      [&](const T* code, int64_t k) { negative_distances<1>(row, code, scores + k); });
}

/// Calls take(k, sum over d of code k times the row, or times itself) for `count` codes from k on.
template <int count, bool squares, typename T, typename Take>
inline void products(const Row<T>& row, const T* codes, int64_t k, const Take& take) {
  using V = VectorOfType<T>;
  V sum[count];
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sum[j] = V{};
  over_codes<count>(row, codes,
                    [&](int j, V code, V value) { sum[j] += code * (squares ? code : value); });
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) take(k + j, sum_lanes<T, kWidth<T>>(sum[j]));
}

template <bool squares, typename T, typename Take>
void all_products(const T* values, int64_t dim, const T* codebook, int64_t size, int64_t begin,
                  int64_t end, const Take& take) {
  const Row<T> row(values, dim);
  over_codebook<kTogether>(
      codebook, size, dim, begin, end,
      [&](const T* codes, int64_t k) { products<kTogether, squares>(row, codes, k, take); },
      [&](const T* code, int64_t k) { products<1, squares>(row, code, k, take); });
}

template <typename T>
bool inverse_norms(int64_t dim, const T* codebook, int64_t size, int64_t begin, int64_t end,
                   T* inverse) {
  // Between these squared norms nothing is lost to underflow or overflow.
  constexpr bool kWide = sizeof(T) == sizeof(double);
  constexpr T kLeast = static_cast<T>(kWide ? kLeastWideSquare : 1e-24);
  constexpr T kMost = static_cast<T>(kWide ? kMostWideSquare : 0x1p120);
  all_products<true>(codebook, dim, codebook, size, begin, end,
                     [&](int64_t k, T square) { inverse[k] = square; });
  int32_t outside = 0;  // NaN is
  for (int64_t k = begin; k < end; ++k) {
    const T square = inverse[k];
    outside |= !(square > kLeast && square < kMost);
    inverse[k] = 1 / (kWide ? static_cast<T>(sqrt(square)) : sqrtf(static_cast<float>(square)));
  }
  return outside == 0;
}

template <typename T>
void angle_row(const T* row, int64_t dim, const T* codebook, int64_t size, int64_t begin,
               int64_t end, const T* inverse, float* scores) {
  all_products<false>(row, dim, codebook, size, begin, end, [&](int64_t k, T product) {
    scores[k] = static_cast<float>(product * inverse[k]);
  });
}

template <typename T>
void set_few_rows(NearestCodeReader<T>& table) {
  table.score_row = score_row<T>;
  table.inverse_norms = inverse_norms<T>;
  table.angle_row = angle_row<T>;
}

}  // namespace
}  // namespace torchvq::kernels
