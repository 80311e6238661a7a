// Scan of some hundred rows over unpacked codes: rows are packed in lanes, and the values of the codes are broadcast.
// Included by nearest_code_scan-inl.h.
#pragma once

namespace torchvq::kernels {
namespace {

/// Codes per tile, chosen so that accumulators, row vectors and values fit the registers; of 16 registers, with 12
/// accumulators, compilers spill some.
template <int vectors>
constexpr int kCodesOfTile = kRegisters == 32 ? (vectors == 1   ? 12
                                                 : vectors == 3 ? 8
                                                                : 24 / vectors)
                                              : 10 / vectors;

template <int vectors, int codes>
struct Products {
  Floats of[codes][vectors] = {};
};

/// Adds the products of `steps` dimensions, unrolled so that the addresses of the codes advance once for all of them.
template <int steps, int vectors, int codes>
inline void add_products(const float* code, int64_t dim, const float* panel,
                         Products<vectors, codes>& products) {
#pragma GCC unroll 4
  for (int d = 0; d < steps; ++d) {
    Floats row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) row[v] = load<Floats>(panel + d * kPanel + v * kLanes);
#pragma GCC unroll 12
    for (int c = 0; c < codes; ++c) {
      const Floats value = Floats{} + code[c * dim + d];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) products.of[c][v] += value * row[v];
    }
  }
}

template <int vectors, int codes, typename Take>
inline void multiply_codes(const float* code, int64_t dim, const float* panel, const Take& take) {
  constexpr int kSteps = 4;
  Products<vectors, codes> products;
  int64_t d = 0;
  for (; d + kSteps <= dim; d += kSteps) {
    add_products<kSteps>(code + d, dim, panel + d * kPanel, products);
  }
  for (; d < dim; ++d) add_products<1>(code + d, dim, panel + d * kPanel, products);
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 12
    for (int c = 0; c < codes; ++c) take(c, v, products.of[c][v]);
  }
}

template <int vectors, typename Take>
void multiply_panel(const UnpackedCodes& codes, const float* panel, const float* norms,
                    const Take& take) {
  constexpr int kTogether = kCodesOfTile<vectors>;
  const auto score = [&](int64_t k, int v, Floats product) {
    const Floats reach = load<Floats>(norms + v * kLanes) * codes.slopes[k] - codes.offsets[k];
    take(k, v, product * codes.scales[k] + reach);
  };
  int64_t k = 0;
  for (; k + kTogether <= codes.count; k += kTogether) {
    multiply_codes<vectors, kTogether>(
        codes.values + k * codes.dim, codes.dim, panel,
        [&](int c, int v, Floats product) { score(k + c, v, product); });
  }
  for (; k < codes.count; ++k) {
    multiply_codes<vectors, 1>(codes.values + k * codes.dim, codes.dim, panel,
                               [&](int, int v, Floats product) { score(k, v, product); });
  }
}

template <typename Take>
void multiply_vectors(const UnpackedCodes& codes, const float* panel, const float* norms,
                      int64_t vectors, const Take& take) {
  if (vectors == 1) return multiply_panel<1>(codes, panel, norms, take);
  if constexpr (kVectors >= 4) {
    if (vectors == 3) return multiply_panel<3>(codes, panel, norms, take);
    if (vectors == 4) return multiply_panel<4>(codes, panel, norms, take);
  }
  multiply_panel<2>(codes, panel, norms, take);
}

void scan_unpacked(const UnpackedCodes& codes, const UnpackedRows& rows, void* state) {
  auto* const states = static_cast<RowState*>(state);
  for (int64_t row = 0; row < rows.count; row += kPanel) {
    const int64_t left = rows.count - row < kPanel ? rows.count - row : kPanel;
    RowState* const first = states + row / kLanes;
    multiply_vectors(codes, rows.panels + row * codes.dim, rows.norms + row,
                     (left + kLanes - 1) / kLanes, [&](int64_t k, int v, Floats score) {
                       take(first[v], score, Ints{} + static_cast<int32_t>(codes.first + k));
                     });
  }
}

void start_unpacked(int64_t row_count, void* state) {
  auto* const states = static_cast<RowState*>(state);
  for (int64_t v = 0; v * kLanes < row_count; ++v) start(states[v]);
}

void finish_unpacked(int64_t row_count, const void* state, ScanResult* results) {
  const auto* const states = static_cast<const RowState*>(state);
  for (int64_t row = 0; row < row_count; ++row) {
    const RowState& rows = states[row / kLanes];
    const int64_t l = row % kLanes;
    results[row] = {rows.best[l], rows.runner_up[l], rows.position[l]};
  }
}

void score_unpacked(const UnpackedCodes& codes, const UnpackedRows& rows, float* scores) {
  multiply_vectors(codes, rows.panels, rows.norms, 1, [&](int64_t k, int, Floats score) {
    store(scores + (codes.first + k) * kLanes, score);
  });
}

/// Squared norms of several codes, and of their differences from `center`.
template <int together>
void norms_of(const float* code, int64_t dim, const float* center, float* squares,
              float* distances) {
  Floats square[together] = {}, distance[together] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Floats middle = load<Floats>(center + d);
#pragma GCC unroll 8
    for (int c = 0; c < together; ++c) {
      const Floats value = load<Floats>(code + c * dim + d), difference = value - middle;
      square[c] += value * value;
      distance[c] += difference * difference;
    }
  }
  for (int c = 0; c < together; ++c) {
    float rest = 0, rest_distance = 0;
    for (int64_t i = d; i < dim; ++i) {
      const float value = code[c * dim + i], difference = value - center[i];
      rest += value * value;
      rest_distance += difference * difference;
    }
    squares[c] = sum_lanes<float, kLanes>(square[c]) + rest;
    distances[c] = sum_lanes<float, kLanes>(distance[c]) + rest_distance;
  }
}

void unpacked_norms(const float* codes, int64_t count, int64_t dim, const float* center,
                    float* norms, float* distances) {
  constexpr int kTogether = 4;
  int64_t k = 0;
  for (; k + kTogether <= count; k += kTogether) {
    norms_of<kTogether>(codes + k * dim, dim, center, norms + k, distances + k);
  }
  for (; k < count; ++k) norms_of<1>(codes + k * dim, dim, center, norms + k, distances + k);
  for (int64_t i = 0; i < count; ++i) norms[i] = sqrtf(norms[i]);
}

void set_unpacked(NearestCodeScan& table) {
  table.scan_unpacked = scan_unpacked;
  table.start_unpacked = start_unpacked;
  table.finish_unpacked = finish_unpacked;
  table.score_unpacked = score_unpacked;
  table.unpacked_norms = unpacked_norms;
}

}  // namespace
}  // namespace torchvq::kernels
