// What a search does once per codebook and once per row: sort codes out, centre, measure, round.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr unsigned kPrepareThreads = 256;
constexpr int kCenterColumns = 32, kCenterLanes = 32;
constexpr int64_t kCenterSample = 1024;  // codes whose mean is the centre; any centre is correct

__device__ inline void raise(Word& largest, double magnitude) {
  atomicMax(&largest, static_cast<Word>(__double_as_longlong(magnitude)));
}
__device__ inline double magnitude_of(Word bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

/// Rows divided by their norm, summed in float64 in index order; zero rows stay zero. Rows that are
/// not finite become NaN or stay infinite.
template <typename T>
__global__ void __launch_bounds__(kPrepareThreads)
    make_unit_rows(const T* rows, int64_t count, int64_t dim, T* to) {
  for (int64_t row = grid_thread(); row < count; row += grid_threads()) {
    const T* from = rows + row * dim;
    double square = 0;
    bool finite = true;
    for (int64_t d = 0; d < dim; ++d) {
      const double value = from[d];
      finite = finite && isfinite(value);
      square += value * value;
    }
    const double norm = sqrt(square);
    for (int64_t d = 0; d < dim; ++d) {
      // A float64 norm may overflow where the row is finite; a row that is not stays so.
      to[row * dim + d] = !finite || norm != 0 ? static_cast<T>(from[d] / norm) : T(0);
      if (!finite) to[row * dim + d] = static_cast<T>(NAN);
    }
  }
}

/// A warp to a code.
template <typename T>
__global__ void __launch_bounds__(kPrepareThreads)
    classify_codes(NearestCodeTask<T> task, uint8_t* status, SearchFacts* facts) {
  for (int64_t code = grid_warp(); code < task.size; code += grid_warps()) {
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
    if (lane_of_warp() != 0) continue;
    bias = fabs(bias);
    const bool small = square < kLargestNorm * kLargestNorm && bias < kLargestNorm * kLargestNorm;
    status[code] = !finite ? kExcluded : (small ? kScreened : kSetAside);
    if (finite && !small) atomicOr(&facts->set_aside, 1);
    if (finite && small) raise(facts->largest_offset, bias);
  }
}

/// The mean of a sample of the codes: 32 columns to a block, 32 threads to a column.
__global__ void __launch_bounds__(kCenterColumns* kCenterLanes, 1) find_center(SearchState state) {
  __shared__ float sums[kCenterLanes][kCenterColumns + 1];
  __shared__ int counts[kCenterLanes];
  const int column = static_cast<int>(threadIdx.x) % kCenterColumns,
            lane = static_cast<int>(threadIdx.x) / kCenterColumns;
  const int64_t size = state.task.size, dim = state.task.dim;
  const int64_t samples = min(size, kCenterSample);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kCenterColumns; first < dim;
       first += static_cast<int64_t>(gridDim.x) * kCenterColumns) {
    const int64_t d = first + column;
    float sum = 0;
    int count = 0;
    for (int64_t i = lane; i < samples; i += kCenterLanes) {
      const int64_t code = i * size / samples;
      if (state.status[code] != kScreened) continue;
      ++count;
      if (d < dim) sum += state.task.codebook[code * dim + d];
    }
    sums[lane][column] = sum;
    if (column == 0) counts[lane] = count;
    __syncthreads();
    if (lane == 0 && d < dim) {
      sum = 0;
      count = 0;
      for (int i = 0; i < kCenterLanes; ++i) {
        sum += sums[i][column];
        count += counts[i];
      }
      state.center[d] = count == 0 ? 0.0f : sum / static_cast<float>(count);
    }
    __syncthreads();
  }
}

/// A warp to a code: its norm about the centre.
__global__ void __launch_bounds__(kPrepareThreads) measure_codes(SearchState state) {
  const auto& task = state.task;
  for (int64_t code = grid_warp(); code < state.padded_size; code += grid_warps()) {
    const bool screened = code < task.size && state.status[code] == kScreened;
    double square = 0;
    for (int64_t d = lane_of_warp(); screened && d < task.dim; d += kWarp) {
      const double value = task.codebook[code * task.dim + d] - state.center[d];
      square += value * value;
    }
    square = sum_of_warp(square);
    if (lane_of_warp() != 0) continue;
    state.half_norms[code] =
        screened ? static_cast<float>((task.cosine ? 0.0 : square / 2) + state.bias_of(code))
                 : HUGE_VALF;
    if (screened) raise(state.facts->largest_norm, sqrt(square));
  }
}

/// Rounds one vector of `dim` numbers less the centre, times 2^scale, to half precision and zeros up
/// to `depth`; returns the norm of what that changes, not scaled. A warp does it.
__device__ inline double round_vector(const float* from, const float* center, int64_t dim,
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
  // The last term is room for values that the multiplication by the power underflows.
  return (sqrt(sum_of_warp(square)) * kNormSlack + 0x1p-60) * power_of_two(-scale);
}

__device__ inline void clear_vector(int64_t depth, uint16_t* to) {
  for (int64_t d = lane_of_warp(); d < depth; d += kWarp) to[d] = 0;
}

/// A warp to a code.
__global__ void __launch_bounds__(kPrepareThreads) round_codes(SearchState state) {
  const auto& task = state.task;
  const int scale = scale_of(magnitude_of(state.facts->largest_norm));
  for (int64_t code = grid_warp(); code < state.padded_size; code += grid_warps()) {
    uint16_t* to = state.codes + code * state.depth;
    if (code < task.size && state.status[code] == kScreened) {
      const double loss = round_vector(task.codebook + code * task.dim, state.center, task.dim,
                                       state.depth, scale, to);
      if (lane_of_warp() == 0) raise(state.facts->largest_loss, loss);
    } else {
      clear_vector(state.depth, to);
    }
  }
}

/// One warp: what all codes together say of errors.
__global__ void __launch_bounds__(kWarp) bound_codes(SearchState state) {
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
  bound.cut = static_cast<double>(state.depth) / kDepthOfMma * kLossPerMma * 1.01;
  bound.all_open = facts.set_aside;
  set_score_error(bound, state.task.dim, magnitude_of(facts.largest_offset), shift);
}

/// A warp to a row: its norm about the centre, and with `half` the row rounded.
template <bool half>
__global__ void __launch_bounds__(kPrepareThreads) prepare_rows(SearchState state) {
  const auto& task = state.task;
  const int64_t count = half ? state.padded_tokens : task.tokens;
  for (int64_t row = grid_warp(); row < count; row += grid_warps()) {
    const float* from = task.x + row * task.dim;
    double square = 0;
    bool finite = true;
    for (int64_t d = lane_of_warp(); row < task.tokens && d < task.dim; d += kWarp) {
      finite = finite && isfinite(from[d]);
      const double value = from[d] - state.center[d];
      square += value * value;
    }
    double norm = sqrt(sum_of_warp(square)) * kNormSlack;
    finite = __all_sync(kWholeWarp, finite);
    const bool inside = finite && norm < kLargestNorm && row < task.tokens;
    if (!inside) norm = finite ? HUGE_VAL : static_cast<double>(NAN);
    double loss = 0;
    int scale = 0;
    if constexpr (half) {
      uint16_t* to = state.rows + row * state.depth;
      if (inside) {
        scale = scale_of(norm);
        loss = round_vector(from, state.center, task.dim, state.depth, scale, to);
      } else {
        clear_vector(state.depth, to);
      }
    }
    if (lane_of_warp() != 0) continue;
    if constexpr (half) {
      state.units[row] = static_cast<float>(power_of_two(-scale - state.facts->bound.scale));
    }
    if (row >= task.tokens) continue;
    state.norms[row] = __double2float_ru(norm);
    if constexpr (half) state.losses[row] = __double2float_ru(loss);
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
