// Preparation of a search, once per codebook and once per row: classifies,
// centres, measures and rounds.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"
#include "kernels/cuda/steps-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr unsigned kPrepareThreads = 256;
constexpr int kCenterColumns = 32, kCenterLanes = 32;
constexpr int64_t kCenterSample = 1024;  // codes averaged for the centre; any centre is correct

/// Most magnitudes raise nothing: a look beforehand saves atomics on one address, which take turns.
__device__ inline void raise(Word& largest, double magnitude) {
  const auto bits = static_cast<Word>(__double_as_longlong(magnitude));
  if (bits > *static_cast<volatile Word*>(&largest)) atomicMax(&largest, bits);
}
__device__ inline double magnitude_of(Word bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

/// The codebooks prepared by one launch: count() of them; of(i) returns the state of one.
struct OneCodebook {
  SearchState state;
  __device__ static int count() { return 1; }
  __device__ const SearchState& of(int) const { return state; }
};

/// Calls body(state, code) for every place of a code, including padding; one warp per place.
template <typename Codebooks, typename Body>
__device__ inline void for_codes(const Codebooks& codebooks, const Body& body) {
  int64_t code = grid_warp();
  for (int i = 0; i < codebooks.count(); ++i) {
    const auto& state = codebooks.of(i);
    for (; code < state.padded_size; code += grid_warps()) body(state, code);
    code -= state.padded_size;
  }
}

/// Divides a row by its norm, summed in float64 in index order, in one thread. A zero row stays
/// zero; a row that is not finite becomes NaN.
template <typename T>
__device__ inline void make_unit_row(const T* from, int64_t dim, T* to) {
  double square = 0;
  bool finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    const double value = from[d];
    finite = finite && isfinite(value);
    square += value * value;
  }
  const double norm = sqrt(square);
  for (int64_t d = 0; d < dim; ++d) {
    // A float64 norm may overflow for a finite row, so NaN depends on the values, not on the norm.
    to[d] = !finite || norm != 0 ? static_cast<T>(from[d] / norm) : T(0);
    if (!finite) to[d] = static_cast<T>(NAN);
  }
}

template <typename T>
__global__ void __launch_bounds__(kPrepareThreads)
    make_unit_rows(const T* rows, int64_t count, int64_t dim, T* to) {
  for (int64_t row = grid_thread(); row < count; row += grid_threads())
    make_unit_row(rows + row * dim, dim, to + row * dim);
}

/// Classifies a code; runs in one warp, and all of it gets the result.
template <typename T>
__device__ inline CodeStatus classify_code(const NearestCodeTask<T>& task, int64_t code,
                                           uint8_t* status, SearchFacts* facts) {
  double square = 0;
  bool finite = true;
  for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
    const double value = task.codebook[code * task.dim + d];
    finite = finite && isfinite(value);
    square += value * value;
  }
  square = sum_of_warp(square);
  finite = __all_sync(kWholeWarp, finite);
  double bias = task.bias ? static_cast<double>(task.bias[code]) : 0.0;
  finite = finite && isfinite(bias);
  bias = fabs(bias);
  const bool small = square < kLargestNorm * kLargestNorm && bias < kLargestNorm * kLargestNorm;
  const CodeStatus found = !finite ? kExcluded : (small ? kScreened : kSetAside);
  if (lane_of_warp() != 0) return found;
  status[code] = found;
  if (finite && !small) atomicOr(&facts->set_aside, 1);
  if (finite && small) raise(facts->largest_offset, bias);
  return found;
}

template <typename T>
__global__ void __launch_bounds__(kPrepareThreads)
    classify_wide_codes(NearestCodeTask<T> task, uint8_t* status, SearchFacts* facts) {
  for (int64_t code = grid_warp(); code < task.size; code += grid_warps())
    classify_code(task, code, status, facts);
}

/// Computes columns [first, first + kCenterColumns) of the mean of a sample of the codes, of the numbers that are finite
/// and not huge; runs in one block.
__device__ inline void find_center_columns(const SearchState& state, int64_t first) {
  __shared__ float sums[kCenterLanes][kCenterColumns + 1];
  __shared__ int counts[kCenterLanes][kCenterColumns + 1];
  const int column = static_cast<int>(threadIdx.x) % kCenterColumns,
            lane = static_cast<int>(threadIdx.x) / kCenterColumns;
  const int64_t size = state.task.size, dim = state.task.dim, d = first + column;
  const int64_t samples = min(size, kCenterSample);
  float sum = 0;
  int count = 0;
#pragma unroll 8
  for (int64_t i = lane; i < samples; i += kCenterLanes) {
    const float value = d < dim ? state.task.codebook[i * size / samples * dim + d] : 0.0f;
    const bool counts_in = fabsf(value) < static_cast<float>(kLargestNorm);
    count += counts_in;
    sum += counts_in ? value : 0.0f;
  }
  sums[lane][column] = sum;
  counts[lane][column] = count;
  __syncthreads();
  if (lane == 0 && d < dim) {
    sum = 0;
    count = 0;
    for (int i = 0; i < kCenterLanes; ++i) {
      sum += sums[i][column];
      count += counts[i][column];
    }
    state.center[d] = count == 0 ? 0.0f : sum / static_cast<float>(count);
  }
  __syncthreads();
}

/// One block per 32 columns of a codebook, 32 threads per column. All
/// codebooks have the same width.
template <typename Codebooks>
__global__ void __launch_bounds__(kCenterColumns* kCenterLanes, 1)
    find_centers(Codebooks codebooks, int64_t dim) {
  const int64_t groups = (dim + kCenterColumns - 1) / kCenterColumns;
  for (int64_t item = blockIdx.x; item < groups * codebooks.count(); item += gridDim.x)
    find_center_columns(codebooks.of(static_cast<int>(item / groups)),
                        item % groups * kCenterColumns);
}

/// Classifies codes, and computes their norms relative to the centre.
template <typename Codebooks>
__global__ void __launch_bounds__(kPrepareThreads) measure_codes(Codebooks codebooks) {
  for_codes(codebooks, [](const SearchState& state, int64_t code) {
    const auto& task = state.task;
    bool screened = false;
    if (code < task.size)
      screened = classify_code(task, code, state.status, state.facts) == kScreened;
    double square = 0;
    for (int64_t d = lane_of_warp(); screened && d < task.dim; d += kWarp) {
      const double value = task.codebook[code * task.dim + d] - state.center[d];
      square += value * value;
    }
    square = sum_of_warp(square);
    if (lane_of_warp() != 0) return;
    state.half_norms[code] =
        screened ? static_cast<float>((task.cosine ? 0.0 : square / 2) + state.bias_of(code))
                 : kNoCode;
    if (screened) raise(state.facts->largest_norm, sqrt(square));
  });
}

/// The norm of an error in half precision from the sum of its squares, without the scale. The last term covers underflow
/// in the multiplication by 2^scale.
__device__ inline double loss_of(double square, int scale) {
  return (sqrt(square) * kNormSlack + 0x1p-60) * power_of_two(-scale);
}

/// Rounds a vector of `dim` numbers minus the centre, times 2^scale, to half precision,
/// padded with zeros up to `depth`; returns the norm of the rounding error, without the
/// scale. Runs in one warp.
template <typename Vector>
__device__ inline double round_vector(const Vector& from, const float* center, int64_t dim,
                                      int64_t depth, int scale, uint16_t* to) {
  const auto power = static_cast<float>(power_of_two(scale));
  double square = 0;
  for (int64_t d = lane_of_warp(); d < depth; d += kWarp) {
    const float value = d < dim ? (from[d] - center[d]) * power : 0.0f;
    const uint16_t rounded = float_to_half(value);
    const double change = static_cast<double>(value) - half_to_float(rounded);
    square += change * change;
    to[d] = rounded;
  }
  return loss_of(sum_of_warp(square), scale);
}

__device__ inline void clear_vector(int64_t depth, uint16_t* to) {
  for (int64_t d = lane_of_warp(); d < depth; d += kWarp) to[d] = 0;
}

template <typename Codebooks>
__global__ void __launch_bounds__(kPrepareThreads) round_codes(Codebooks codebooks) {
  for_codes(codebooks, [](const SearchState& state, int64_t code) {
    const auto& task = state.task;
    uint16_t* to = state.codes + code * state.depth;
    if (code < task.size && state.status[code] == kScreened) {
      const int scale = scale_of(magnitude_of(state.facts->largest_norm));
      const double loss = round_vector(task.codebook + code * task.dim, state.center, task.dim,
                                       state.depth, scale, to);
      if (lane_of_warp() == 0) raise(state.facts->largest_loss, loss);
    } else {
      clear_vector(state.depth, to);
    }
  });
}

/// Combines the errors of all codes of a codebook; runs in one warp.
__device__ inline void bound_codebook(const SearchState& state) {
  double shift = 0;
  for (int64_t d = lane_of_warp(); d < state.task.dim; d += kWarp) {
    const double value = state.center[d];
    shift += value * value;
  }
  shift = sqrt(sum_of_warp(shift)) * kNormSlack;
  if (lane_of_warp() != 0) return;
  SearchFacts& facts = *state.facts;
  CodeBound& bound = facts.bound;
  const double norm = magnitude_of(facts.largest_norm);
  bound.norm = norm * kNormSlack;
  bound.loss = magnitude_of(facts.largest_loss);
  bound.scale = scale_of(norm);
  bound.split_loss = magnitude_of(facts.largest_split_loss);
  bound.cut = static_cast<double>(state.products) * kLossPerMma * 1.01;
  bound.all_open = facts.set_aside;
  set_score_error(bound, state.task.dim, magnitude_of(facts.largest_offset), shift);
}

template <typename Codebooks>
__global__ void __launch_bounds__(kWarp) bound_codes(Codebooks codebooks) {
  for (int i = static_cast<int>(blockIdx.x); i < codebooks.count();
       i += static_cast<int>(gridDim.x))
    bound_codebook(codebooks.of(i));
}

inline unsigned blocks_of_warps(int64_t count) {
  return blocks_for(count, kPrepareThreads / kWarp);
}

/// Sizes of the codebooks that are prepared together.
struct PreparedSizes {
  int64_t codebooks, codes, dim;  ///< codes: of all codebooks, padding included
  bool cosine;
};

/// Computes everything about codes that does not depend on rows; round() launches their rounding. Facts are already
/// zero, and so are centres for a cosine metric: unit vectors gain little from a centre.
template <typename Codebooks, typename Round>
void prepare_codes(Steps& steps, const Codebooks& codebooks, const PreparedSizes& sizes,
                   const Round& round) {
  const auto blocks = blocks_of_warps(sizes.codes);
  if (!sizes.cosine) {
    const int64_t groups = sizes.codebooks * ((sizes.dim + kCenterColumns - 1) / kCenterColumns);
    steps.run(find_centers<Codebooks>, blocks_for(groups, 1), kCenterColumns * kCenterLanes, 0,
              codebooks, sizes.dim);
  }
  steps.run(measure_codes<Codebooks>, blocks, kPrepareThreads, 0, codebooks);
  round(blocks);
  steps.run(bound_codes<Codebooks>, blocks_for(sizes.codebooks, 1), kWarp, 0, codebooks);
}

/// The norm of a row relative to the centre; NaN if the row is not finite, infinite if the bound
/// does not hold. Runs in one warp.
template <typename Vector>
__device__ inline double norm_of_row(const Vector& from, const float* center, int64_t dim) {
  double square = 0;
  bool finite = true;
  for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
    finite = finite && isfinite(from[d]);
    const double value = from[d] - center[d];
    square += value * value;
  }
  const double norm = sqrt(sum_of_warp(square)) * kNormSlack;
  if (!__all_sync(kWholeWarp, finite)) return NAN;
  return norm < kLargestNorm ? norm : HUGE_VAL;
}

/// The value of one unit of a product of a row and a code, both rounded and scaled.
__device__ inline float unit_of(int row_scale, const CodeBound& bound) {
  return static_cast<float>(power_of_two(-row_scale - bound.scale));
}

/// One warp per row: its norm relative to the centre, and, with `half`, the rounded row.
template <bool half>
__global__ void __launch_bounds__(kPrepareThreads) prepare_rows(SearchState state) {
  const auto& task = state.task;
  const int64_t count = half ? state.padded_tokens : task.tokens;
  for (int64_t row = grid_warp(); row < count; row += grid_warps()) {
    const float* from = task.x + row * task.dim;
    const double norm =
        norm_of_row(from, state.center, row < task.tokens ? task.dim : 0);  // padding has no values
    double loss = 0;
    int scale = 0;
    if constexpr (half) {
      uint16_t* to = state.rows + row * state.depth;
      if (row < task.tokens && norm < kLargestNorm) {
        scale = scale_of(norm);
        loss = round_vector(from, state.center, task.dim, state.depth, scale, to);
      } else {
        clear_vector(state.depth, to);
      }
    }
    if (lane_of_warp() != 0) continue;
    if constexpr (half) {
      state.units[row] = unit_of(scale, state.facts->bound);
    }
    if (row >= task.tokens) continue;
    state.norms[row] = __double2float_ru(norm);
    if constexpr (half) state.losses[row] = __double2float_ru(loss);
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
