// Source of the kernels of projected_level.h; included by one file per instruction set, which
// defines TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/projected_level.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr double kSmallestDivisor = 1e-12;  // smallest divisor, as in torch's normalize
constexpr int kRowsTogether = 3;
constexpr int kPartsTogether = 4;
constexpr int kOutputsTogether = kRegisters == 32 ? 8 : 4;
constexpr int kNarrowDim = 8;  // codes of this many features have specialised kernels

template <typename T>
constexpr int kWidth = kLanes * static_cast<int>(sizeof(float)) / static_cast<int>(sizeof(T));
template <typename T>
using Numbers = Vector<T, kWidth<T>>;

inline int64_t padded_to(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

/// Adds partial sums pairwise.
template <typename T>
inline T total_of(T* partial) {
  for (int64_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) partial[l] += partial[l + half];
  }
  return partial[0];
}

// Into a level ------------------------------------------------------------------------------------

/// Rows of a weight: whole blocks of kPartialSums features in place, and a
/// padded copy of the last block.
template <typename T>
struct WeightRows {
  const T* values;
  int64_t features, whole;
  const T* tail;  ///< (outputs, kPartialSums), or null
};

template <typename T, int rows, int outputs>
inline void add_products(const T* row, int64_t row_step, const T* weight, int64_t weight_step,
                         Numbers<T> (&sum)[rows][outputs]) {
  Numbers<T> value[rows];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) value[r] = load<Numbers<T>>(row + r * row_step);
#pragma GCC unroll 8
  for (int o = 0; o < outputs; ++o) {
    const auto factor = load<Numbers<T>>(weight + o * weight_step);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sum[r][o] += value[r] * factor;
  }
}

template <typename T, int rows, int outputs>
void project_tile(const T* row, int64_t row_step, const WeightRows<T>& weight, const T* bias,
                  int64_t dim, T* latents) {
  alignas(64) T partial[rows][outputs][kPartialSums];
  for (int64_t part = 0; part < kPartialSums; part += kWidth<T>) {
    Numbers<T> sum[rows][outputs];
    for (auto& of_row : sum) {
      for (auto& of_output : of_row) of_output = Numbers<T>{};
    }
    for (int64_t c = part; c < weight.whole; c += kPartialSums) {
      add_products(row + c, row_step, weight.values + c, weight.features, sum);
    }
    if (weight.tail) {
      add_products(row + weight.whole + part, row_step, weight.tail + part, kPartialSums, sum);
    }
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < outputs; ++o) store(partial[r][o] + part, sum[r][o]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) latents[r * dim + o] = total_of(partial[r][o]) + bias[o];
  }
}

template <typename T, int outputs>
void project_rows(const T* rows, int64_t count, int64_t stride, const WeightRows<T>& weight,
                  const T* bias, int64_t dim, T* latents) {
  int64_t r = 0;
  for (; r + kRowsTogether <= count; r += kRowsTogether) {
    project_tile<T, kRowsTogether, outputs>(rows + r * stride, stride, weight, bias, dim,
                                            latents + r * dim);
  }
  for (; r < count; ++r) {
    project_tile<T, 1, outputs>(rows + r * stride, stride, weight, bias, dim, latents + r * dim);
  }
}

template <typename T>
void project_in(const ProjectedShape& shape, const T* rows, int64_t count, const T* weight,
                const T* bias, T* latents) {
  const int64_t stride = row_stride(shape.features);
  const int64_t whole = shape.features / kPartialSums * kPartialSums;
  T tail[kOutputsTogether * kPartialSums];
  for (int64_t o = 0; o < shape.dim;) {
    const int64_t outputs = o + kOutputsTogether <= shape.dim ? kOutputsTogether : 1;
    const T* const from = weight + o * shape.features;
    memset(tail, 0, sizeof tail);
    for (int64_t i = 0; i < outputs; ++i) {
      memcpy(tail + i * kPartialSums, from + i * shape.features + whole,
             sizeof(T) * static_cast<size_t>(shape.features - whole));
    }
    const WeightRows<T> outputs_of = {from, shape.features, whole,
                                      whole < shape.features ? tail : nullptr};
    (outputs > 1 ? project_rows<T, kOutputsTogether> : project_rows<T, 1>)(rows, count, stride,
                                                                           outputs_of, bias + o,
                                                                           shape.dim, latents + o);
    o += outputs;
  }
}

// Unit vectors ------------------------------------------------------------------------------------

inline float root(float value) { return sqrtf(value); }
inline double root(double value) { return sqrt(value); }

template <typename T>
void unit_vectors(const T* vectors, int64_t count, int64_t dim, T* units) {
  for (int64_t i = 0; i < count; ++i) {
    const T* const from = vectors + i * dim;
    T square = 0;
    for (int64_t d = 0; d < dim; ++d) square += from[d] * from[d];
    const T norm = root(square);
    const T divisor = norm < T(kSmallestDivisor) ? T(kSmallestDivisor) : norm;
    for (int64_t d = 0; d < dim; ++d) units[i * dim + d] = from[d] / divisor;
  }
}

// Out of a level ----------------------------------------------------------------------------------

/// For each kWidth<T> features: their biases, then their weights for each feature of a code.
template <typename T>
int64_t packed_size(const ProjectedShape& shape) {
  return padded_to(shape.features, kWidth<T>) * (1 + padded_dim(shape.dim));
}

template <typename T>
void pack_out(const ProjectedShape& shape, const T* weight, const T* bias, T* packed) {
  const int64_t depth = padded_dim(shape.dim);
  for (int64_t c = 0; c < shape.features; c += kWidth<T>) {
    T* const block = packed + c * (1 + depth);
    memset(block, 0, sizeof(T) * static_cast<size_t>(kWidth<T> * (1 + depth)));
    for (int64_t l = 0; l < kWidth<T> && c + l < shape.features; ++l) {
      block[l] = bias[c + l];
      for (int64_t d = 0; d < shape.dim; ++d) {
        block[(1 + d) * kWidth<T> + l] = weight[(c + l) * shape.dim + d];
      }
    }
  }
}

template <typename V, int count>
inline V add_pairwise(V* terms) {
#pragma GCC unroll 8
  for (int l = 0; l < count / 2; ++l) terms[l] += terms[l + count / 2];
  if constexpr (count > 2) return add_pairwise<V, count / 2>(terms);
  return terms[0];
}

/// Dot products of a code with kWidth<T> rows of the weight.
template <typename T, int partials>
[[gnu::always_inline]] inline Numbers<T> part_of(const T* weights, const T* code, int64_t depth) {
  Numbers<T> sum[partials];
#pragma GCC unroll 16
  for (int64_t l = 0; l < partials; ++l)
    sum[l] = load<Numbers<T>>(weights + l * kWidth<T>) * code[l];
  for (int64_t d = partials; partials > kNarrowDim && d < depth; d += partials) {
#pragma GCC unroll 16
    for (int64_t l = 0; l < partials; ++l) {
      sum[l] += load<Numbers<T>>(weights + (d + l) * kWidth<T>) * code[d + l];
    }
  }
  return add_pairwise<Numbers<T>, partials>(sum);
}

template <typename T>
[[gnu::always_inline]] inline void take(Numbers<T> part, T* row, T* total) {
  store(row, load<Numbers<T>>(row) - part);
  store(total, load<Numbers<T>>(total) + part);
}

/// For the last features, which do not fill a vector. Padding must stay zero,
/// since a part may be infinite.
template <typename T>
void take_some(Numbers<T> part, int64_t count, T* row, T* total) {
  for (int64_t l = 0; l < count; ++l) {
    row[l] -= part[l];
    total[l] += part[l];
  }
}

/// For several rows together, so that weights are read once for all of them.
template <typename T, int partials, int together>
void take_part_of_rows(const ProjectedShape& shape, const T* packed, const T* codes, T* rows,
                       T* totals) {
  const int64_t depth = padded_dim(shape.dim), stride = row_stride(shape.features);
  const int64_t rest = shape.features % kWidth<T>, whole = shape.features - rest;
  const T* block = packed;
  for (int64_t c = 0; c < whole; c += kWidth<T>, block += kWidth<T> * (1 + depth)) {
    const auto bias = load<Numbers<T>>(block);
#pragma GCC unroll 4
    for (int r = 0; r < together; ++r) {
      const auto part = part_of<T, partials>(block + kWidth<T>, codes + r * depth, depth) + bias;
      take<T>(part, rows + r * stride + c, totals + r * stride + c);
    }
  }
  for (int r = 0; r < together && rest > 0; ++r) {
    const auto part =
        part_of<T, partials>(block + kWidth<T>, codes + r * depth, depth) + load<Numbers<T>>(block);
    take_some<T>(part, rest, rows + r * stride + whole, totals + r * stride + whole);
  }
}

template <typename T, int partials>
void take_part_of(const ProjectedShape& shape, const T* packed, const T* codes, int64_t count,
                  T* rows, T* totals) {
  const int64_t depth = padded_dim(shape.dim), stride = row_stride(shape.features);
  int64_t r = 0;
  for (; r + kPartsTogether <= count; r += kPartsTogether) {
    take_part_of_rows<T, partials, kPartsTogether>(shape, packed, codes + r * depth,
                                                   rows + r * stride, totals + r * stride);
  }
  for (; r < count; ++r) {
    take_part_of_rows<T, partials, 1>(shape, packed, codes + r * depth, rows + r * stride,
                                      totals + r * stride);
  }
}

template <typename T>
void take_part(const ProjectedShape& shape, const T* packed, const T* codes, int64_t count, T* rows,
               T* totals) {
  (shape.dim <= kNarrowDim
       ? take_part_of<T, kNarrowDim>
       : take_part_of<T, kPartialSums>)(shape, packed, codes, count, rows, totals);
}

// Few rows, codes of 8 features -------------------------------------------------------------------

/// Adds values that lie `stride` apart within each 2 * stride values of `count` vectors; half
/// as many values are left.
template <int stride, int count>
inline void fold(Floats* values) {
  Ints lower{}, upper{};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) {
    lower[l] = l / stride * 2 * stride + l % stride;
    upper[l] = lower[l] + stride;
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < count / 2; ++i) {
    const Floats a = values[2 * i], b = values[2 * i + 1];
    values[i] = stride >= kLanes ? a + b : shuffle(a, b, lower) + shuffle(a, b, upper);
  }
}

/// Sums kLanes consecutive groups of 8 terms, adding in the order of part_of.
inline Floats sums_of_eight(Floats* terms) {
  fold<4, 8>(terms);
  fold<2, 4>(terms);
  fold<1, 2>(terms);
  return terms[0];
}

/// A vector of 8 values, repeated kLanes times.
struct Repeated {
  Floats values[kNarrowDim];

  explicit Repeated(const float* from) {
    alignas(64) float all[kNarrowDim * kLanes];
    for (int i = 0; i < kNarrowDim * kLanes; ++i) all[i] = from[i % kNarrowDim];
    for (int64_t i = 0; i < kNarrowDim; ++i) values[i] = load<Floats>(all + i * kLanes);
  }
};

inline Floats products_with(const float* vectors, const Repeated& factor) {
  Floats terms[kNarrowDim];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kNarrowDim; ++i) {
    terms[i] = load<Floats>(vectors + i * kLanes) * factor.values[i];
  }
  return sums_of_eight(terms);
}

inline Floats squares_of(const float* vectors) {
  Floats terms[kNarrowDim];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kNarrowDim; ++i) {
    const auto value = load<Floats>(vectors + i * kLanes);
    terms[i] = value * value;
  }
  return sums_of_eight(terms);
}

void take_part_unpacked(const ProjectedShape& shape, const float* weight, const float* bias,
                        const float* codes, int64_t count, float* rows, float* totals) {
  const int64_t stride = row_stride(shape.features), rest = shape.features % kLanes;
  const int64_t whole = shape.features - rest;
  alignas(64) float last[kLanes * kNarrowDim] = {}, last_bias[kLanes] = {};
  memcpy(last, weight + whole * kNarrowDim, sizeof(float) * static_cast<size_t>(rest * kNarrowDim));
  memcpy(last_bias, bias + whole, sizeof(float) * static_cast<size_t>(rest));
  for (int64_t r = 0; r < count; ++r) {
    const Repeated code(codes + r * kNarrowDim);
    float *const row = rows + r * stride, *const total = totals + r * stride;
    for (int64_t c = 0; c < whole; c += kLanes) {
      const Floats part = products_with(weight + c * kNarrowDim, code) + load<Floats>(bias + c);
      take<float>(part, row + c, total + c);
    }
    if (rest > 0) {
      const Floats part = products_with(last, code) + load<Floats>(last_bias);
      take_some<float>(part, rest, row + whole, total + whole);
    }
  }
}

inline Floats roots(Floats values) {
  float of[kLanes];
  store(of, values);
  for (float& value : of) value = sqrtf(value);
  return load<Floats>(of);
}

/// Calls body(codes, k, count) for kLanes codes at a time; the last group is padded with ones.
template <typename Body>
inline void for_each_eight(const float* codebook, int64_t size, const Body& body) {
  int64_t k = 0;
  for (; k + kLanes <= size; k += kLanes) body(codebook + k * kNarrowDim, k, kLanes);
  if (k == size) return;
  alignas(64) float last[kLanes * kNarrowDim];
  for (float& value : last) value = 1.0F;
  memcpy(last, codebook + k * kNarrowDim,
         sizeof(float) * static_cast<size_t>((size - k) * kNarrowDim));
  body(last, k, size - k);
}

inline void store_some(float* to, Floats values, int64_t count) {
  if (count == kLanes) {
    store(to, values);
  } else {
    memcpy(to, &values, sizeof(float) * static_cast<size_t>(count));
  }
}

bool inverse_norms(const float* codebook, int64_t size, float* inverse) {
  constexpr float kSmallest = 1e-18F, kLargest = 1e18F;  // squares with accurate roots
  Ints usable = Ints{} - 1;
  for_each_eight(codebook, size, [&](const float* codes, int64_t k, int64_t count) {
    const Floats squares = squares_of(codes);
    usable &= (squares > kSmallest) & (squares < kLargest);
    store_some(inverse + k, 1.0F / roots(squares), count);
  });
  bool all = true;
  for (int l = 0; l < kLanes; ++l) all = all && usable[l] != 0;
  return all;
}

void angles(const float* row, const float* codebook, const float* inverse, int64_t size,
            float* scores) {
  const Repeated factor(row);
  for_each_eight(codebook, size, [&](const float* codes, int64_t k, int64_t count) {
    Floats scale{};
    memcpy(&scale, inverse + k, sizeof(float) * static_cast<size_t>(count));
    store_some(scores + k, products_with(codes, factor) * scale, count);
  });
}

// Columns -----------------------------------------------------------------------------------------

/// Calls body(row, feature) for blocks of kLanes rows and features that cover all whole
/// blocks of features. The last block of rows may overlap the one before. Returns the
/// number of features covered.
template <typename T, typename Body>
inline int64_t for_each_block(const ProjectedShape& shape, int64_t count, const Body& body) {
  if (sizeof(T) != sizeof(float) || count < kLanes) return 0;
  const int64_t whole = shape.features / kLanes * kLanes;
  for (int64_t r = 0; r < count; r += kLanes) {
    const int64_t row = r + kLanes <= count ? r : count - kLanes;
    for (int64_t c = 0; c < whole; c += kLanes) body(row, c);
  }
  return whole;
}

template <typename T>
void load_columns(const ProjectedShape& shape, const T* from, int64_t stride, int64_t count,
                  T* rows) {
  const int64_t apart = row_stride(shape.features), padded = padded_features(shape.features);
  int64_t c = for_each_block<T>(shape, count, [&](int64_t row, int64_t feature) {
    Floats block[kLanes];
    for (int l = 0; l < kLanes; ++l) block[l] = load<Floats>(from + row + (feature + l) * stride);
    transpose(block);
    for (int l = 0; l < kLanes; ++l) store(rows + (row + l) * apart + feature, block[l]);
  });
  for (; c < shape.features; ++c) {
    for (int64_t r = 0; r < count; ++r) rows[r * apart + c] = from[r + c * stride];
  }
  for (; c < padded; ++c) {
    for (int64_t r = 0; r < count; ++r) rows[r * apart + c] = 0;
  }
}

template <typename T>
void store_columns(const ProjectedShape& shape, const T* rows, int64_t count, int64_t stride,
                   T* to) {
  const int64_t apart = row_stride(shape.features);
  int64_t c = for_each_block<T>(shape, count, [&](int64_t row, int64_t feature) {
    Floats block[kLanes];
    for (int l = 0; l < kLanes; ++l) block[l] = load<Floats>(rows + (row + l) * apart + feature);
    transpose(block);
    for (int l = 0; l < kLanes; ++l) store(to + row + (feature + l) * stride, block[l]);
  });
  for (; c < shape.features; ++c) {
    for (int64_t r = 0; r < count; ++r) to[r + c * stride] = rows[r * apart + c];
  }
}

template <typename T>
ProjectedLevelKernel<T> kernel_of() {
  ProjectedLevelKernel<T> kernel = {};
  kernel.project_in = project_in<T>;
  kernel.unit_vectors = unit_vectors<T>;
  kernel.pack_out = pack_out<T>;
  kernel.packed_size = packed_size<T>;
  kernel.take_part = take_part<T>;
  kernel.load_columns = load_columns<T>;
  kernel.store_columns = store_columns<T>;
  return kernel;
}

}  // namespace

ProjectedLevelKernels TORCHVQ_LEVEL_NAME(projected_level)() {
  ProjectedLevelKernels kernels = {kernel_of<float>(), kernel_of<double>()};
  kernels.narrow.take_part_unpacked = take_part_unpacked;
  kernels.narrow.inverse_norms = inverse_norms;
  kernels.narrow.angles = angles;
  return kernels;
}

}  // namespace torchvq::kernels
