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

Tail tail_of(int64_t dim) {
  const int64_t whole = dim / kLanes * kLanes;
  Tail tail = {dim < kLanes ? 0 : dim - kLanes, Ints{}};
  for (int l = 0; l < kLanes; ++l) {
    const int64_t d = tail.begin + l;
    tail.mask[l] = d >= whole && d < dim ? -1 : 0;
  }
  return tail;
}

/// A row and, padded with zeros, its last vector.
struct Row {
  Row(const float* row, int64_t row_dim) : values(row), dim(row_dim), tail(tail_of(row_dim)) {
    float padded[kLanes] = {};
    memcpy(padded, row + tail.begin,
           sizeof(float) * static_cast<size_t>(dim < kLanes ? dim : kLanes));
    last = load<Floats>(padded);
  }

  const float* values;
  int64_t dim;
  Tail tail;
  Floats last;
};

// Codes in flight: enough chains of dependent additions to fill the pipeline.
constexpr int kTogether = 8;
// Prefetch distance in floats. Each code of a tile is a stream of its own that is read once, so the
// processor does not see that the codes are adjacent in memory.
constexpr int kAhead = 2048;
constexpr int kFloatsOfCacheLine = 16;

/// Calls add(code, values of the code, values of the row) for every vector of `count` codes; lanes beyond a code are
/// zero in both.
template <int count, typename Add>
inline void over_codes(const Row& row, const float* codes, const Add& add) {
  for (int64_t d = 0; d + kLanes <= row.dim; d += kLanes) {
    const Floats value = load<Floats>(row.values + d);
#pragma GCC unroll 8
    for (int i = 0; i < count * kLanes; i += kFloatsOfCacheLine) {
      __builtin_prefetch(codes + count * d + kAhead + i);
    }
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) add(j, load<Floats>(codes + j * row.dim + d), value);
  }
  if (row.dim % kLanes == 0) return;
  const auto masked = [&](Floats v) {
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(v) & row.tail.mask);
  };
  const Floats value = masked(row.last);
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) {
    add(j, masked(load<Floats>(codes + j * row.dim + row.tail.begin)), value);
  }
}

/// Calls score(codes, k) for `together` codes from k on, or score_one for a single one, and hands a copy to it where a
/// vector would read past the codebook.
template <int together, typename Score, typename ScoreOne>
inline void over_codebook(const float* codebook, int64_t size, int64_t dim, int64_t begin,
                          int64_t end, const Score& score, const ScoreOne& score_one) {
  // A vector load may read past a short code, but not past the codebook.
  int64_t readable = dim < kLanes ? (size * dim - kLanes) / dim + 1 : size;
  if (size * dim < kLanes) readable = 0;
  const int64_t whole = end < readable ? end : readable;
  int64_t k = begin;
  for (; k + together <= whole; k += together) score(codebook + k * dim, k);
  for (; k < whole; ++k) score_one(codebook + k * dim, k);
  for (; k < end; ++k) {
    float code[kLanes] = {};
    memcpy(code, codebook + k * dim, sizeof(float) * static_cast<size_t>(dim));
    score_one(code, k);
  }
}

template <int count>
inline void negative_distances(const Row& row, const float* codes, float* scores) {
  Floats sum[count];
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sum[j] = Floats{};
  over_codes<count>(row, codes, [&](int j, Floats code, Floats value) {
    const Floats difference = code - value;
    sum[j] += difference * difference;
  });
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) scores[j] = -sum_lanes<float, kLanes>(sum[j]);
}

void score_row(const float* values, int64_t dim, const float* codebook, int64_t size, int64_t begin,
               int64_t end, float* scores) {
  const Row row(values, dim);
  over_codebook<kTogether>(
      codebook, size, dim, begin, end,
      [&](const float* codes, int64_t k) { negative_distances<kTogether>(row, codes, scores + k); },
      [&](const float* code, int64_t k) { negative_distances<1>(row, code, scores + k); });
}

/// sums[j] = sum over d of code j times the row, or times itself.
template <int count, bool squares>
inline void products(const Row& row, const float* codes, float* sums) {
  Floats sum[count];
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sum[j] = Floats{};
  over_codes<count>(row, codes, [&](int j, Floats code, Floats value) {
    sum[j] += code * (squares ? code : value);
  });
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sums[j] = sum_lanes<float, kLanes>(sum[j]);
}

template <bool squares>
void all_products(const float* values, int64_t dim, const float* codebook, int64_t size,
                  int64_t begin, int64_t end, float* sums) {
  const Row row(values, dim);
  over_codebook<kTogether>(
      codebook, size, dim, begin, end,
      [&](const float* codes, int64_t k) { products<kTogether, squares>(row, codes, sums + k); },
      [&](const float* code, int64_t k) { products<1, squares>(row, code, sums + k); });
}

bool inverse_norms(int64_t dim, const float* codebook, int64_t size, int64_t begin, int64_t end,
                   float* inverse) {
  // Between these squared norms float32 loses nothing to underflow or overflow.
  constexpr float kLeast = 1e-24F, kMost = 0x1p120F;
  all_products<true>(codebook, dim, codebook, size, begin, end, inverse);
  int32_t outside = 0;  // NaN is
  for (int64_t k = begin; k < end; ++k) {
    const float square = inverse[k];
    outside |= !(square > kLeast && square < kMost);
    inverse[k] = 1 / sqrtf(square);
  }
  return outside == 0;
}

void angle_row(const float* row, int64_t dim, const float* codebook, int64_t size, int64_t begin,
               int64_t end, const float* inverse, float* scores) {
  all_products<false>(row, dim, codebook, size, begin, end, scores);
  for (int64_t k = begin; k < end; ++k) scores[k] *= inverse[k];
}

void set_few_rows(NearestCodeScan& table) {
  table.score_row = score_row;
  table.inverse_norms = inverse_norms;
  table.angle_row = angle_row;
}

}  // namespace
}  // namespace torchvq::kernels
