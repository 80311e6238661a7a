// Averages of a map over the cells of a grid, linear interpolation of the cells, and the transposes
// of both. Torch-free. Each is a product of one sparse matrix per axis.
//
// A block of channels is transposed into a scratch buffer in float64, channels last; there each axis
// is resampled in turn, and every inner loop runs over channels. Bound by the two transpositions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace torchvq::kernels {

/// The sparse matrix of one axis: output o is the sum of inputs [first[o], first[o + 1]...) times
/// their weights, divided by its divisor.
struct ResampledAxis {
  int64_t inputs, outputs;
  std::vector<int64_t> begins, ends;  ///< of each output
  std::vector<double> weights;        ///< of all inputs of all outputs; empty: 1
  std::vector<double> divisors;       ///< of each output; empty: 1
  std::vector<double> shares;         ///< of each input, divided by before; empty: 1
};

/// Cell i averages positions [floor(i N / n), ceil((i + 1) N / n)).
inline ResampledAxis averaged_axis(int64_t cells, int64_t positions) {
  ResampledAxis axis{positions, cells, {}, {}, {}, {}, {}};
  for (int64_t cell = 0; cell < cells; ++cell) {
    axis.begins.push_back(cell * positions / cells);
    axis.ends.push_back(((cell + 1) * positions + cells - 1) / cells);
    axis.divisors.push_back(static_cast<double>(axis.ends.back() - axis.begins.back()));
  }
  return axis;
}

/// Linear between the centres of cells; positions beyond the outermost centres repeat the edge.
inline ResampledAxis interpolated_axis(int64_t cells, int64_t positions) {
  ResampledAxis axis{cells, positions, {}, {}, {}, {}, {}};
  for (int64_t position = 0; position < positions; ++position) {
    const auto numerator = static_cast<double>(2 * position * cells + cells - positions);
    const double place = std::clamp(numerator / static_cast<double>(2 * positions), 0.0,
                                    static_cast<double>(cells - 1));
    const auto before = static_cast<int64_t>(place);
    const double rest = place - static_cast<double>(before);
    axis.begins.push_back(before);
    axis.weights.push_back(1 - rest);
    if (rest > 0) axis.weights.push_back(rest);
    axis.ends.push_back(before + (rest > 0 ? 2 : 1));
  }
  return axis;
}

/// Outputs and inputs exchanged. The inputs of each output are consecutive, because begins and ends
/// never fall.
inline ResampledAxis transposed(const ResampledAxis& axis) {
  ResampledAxis result{axis.outputs, axis.inputs, {}, {}, {}, {}, axis.divisors};
  std::vector<std::vector<double>> weights(axis.inputs);
  result.begins.assign(axis.inputs, axis.outputs);
  result.ends.assign(axis.inputs, 0);
  size_t next = 0;
  for (int64_t output = 0; output < axis.outputs; ++output) {
    for (int64_t input = axis.begins[output]; input < axis.ends[output]; ++input) {
      result.begins[input] = std::min(result.begins[input], output);
      result.ends[input] = output + 1;
      weights[input].push_back(axis.weights.empty() ? 1.0 : axis.weights[next++]);
    }
  }
  for (int64_t input = 0; input < axis.inputs; ++input) {
    // Nothing reads a cell between positions that are far apart.
    result.begins[input] = std::min(result.begins[input], result.ends[input]);
  }
  for (const auto& row : weights) {
    result.weights.insert(result.weights.end(), row.begin(), row.end());
  }
  return result;
}

/// Channels that go through the scratch buffers together: a multiple of every vector.
constexpr int64_t kResampledChannels = 16;

/// `from` (outer, inputs, inner, channels), which is changed where inputs are divided, to `to`
/// (outer, outputs, inner, channels).
inline void resample_axis(const ResampledAxis& axis, int64_t outer, int64_t inner, double* from,
                          double* to) {
  constexpr int64_t kWidth = kResampledChannels;
  const int64_t row = inner * kWidth;
  for (int64_t o = 0; o < outer; ++o, from += axis.inputs * row) {
    for (int64_t input = 0; !axis.shares.empty() && input < axis.inputs; ++input) {
      for (int64_t j = 0; j < row; ++j) from[input * row + j] /= axis.shares[input];
    }
    const double* weights = axis.weights.data();
    for (int64_t output = 0; output < axis.outputs; ++output) {
      const int64_t begin = axis.begins[output], count = axis.ends[output] - begin;
      for (int64_t j = 0; j < row; j += kWidth, to += kWidth) {
        const double* value = from + begin * row + j;
        double sum[kWidth] = {};
        for (int64_t i = 0; i < count; ++i, value += row) {
          const double weight = axis.weights.empty() ? 1.0 : weights[i];
          for (int64_t c = 0; c < kWidth; ++c) sum[c] += weight * value[c];
        }
        const double divisor = axis.divisors.empty() ? 1.0 : axis.divisors[output];
        for (int64_t c = 0; c < kWidth; ++c) to[c] = sum[c] / divisor;
      }
      if (!axis.weights.empty()) weights += count;
    }
  }
}

/// The channels of one sample: a map (D, positions) and tokens (cells, D).
struct ScaleResampler {
  std::vector<ResampledAxis> axes;
  std::vector<int64_t> order;  ///< in which the axes are resampled
  bool to_tokens;

  int64_t places(bool outputs) const {
    int64_t count = 1;
    for (const auto& axis : axes) count *= outputs ? axis.outputs : axis.inputs;
    return count;
  }

  /// Values of a scratch buffer: it holds the result of every step.
  int64_t scratch_size() const {
    int64_t most = kResampledChannels;
    for (const auto& axis : axes) most *= std::max(axis.inputs, axis.outputs);
    return most;
  }

  /// Channels [first, first + width) of `dim`, at most kResampledChannels. The scratch buffers are
  /// of scratch_size().
  template <typename T>
  void run(const T* input, int64_t dim, int64_t first, int64_t width, double* scratch,
           double* other, T* output) const {
    constexpr int64_t kWidth = kResampledChannels;
    const int64_t inputs = places(false), outputs = places(true);
    if (width < kWidth) std::fill(scratch, scratch + inputs * kWidth, 0.0);
    if (to_tokens) {
      for (int64_t c = 0; c < width; ++c) {
        const T* const row = input + (first + c) * inputs;
        for (int64_t p = 0; p < inputs; ++p) scratch[p * kWidth + c] = static_cast<double>(row[p]);
      }
    } else {
      for (int64_t p = 0; p < inputs; ++p) {
        const T* const row = input + p * dim + first;
        for (int64_t c = 0; c < width; ++c) scratch[p * kWidth + c] = static_cast<double>(row[c]);
      }
    }
    const double* const found = resample(scratch, other);
    if (to_tokens) {
      for (int64_t p = 0; p < outputs; ++p) {
        T* const row = output + p * dim + first;
        for (int64_t c = 0; c < width; ++c) row[c] = static_cast<T>(found[p * kWidth + c]);
      }
    } else {
      for (int64_t c = 0; c < width; ++c) {
        T* const row = output + (first + c) * outputs;
        for (int64_t p = 0; p < outputs; ++p) row[p] = static_cast<T>(found[p * kWidth + c]);
      }
    }
  }

 private:
  /// Resamples every axis; returns the buffer that holds the result.
  const double* resample(double* from, double* to) const {
    std::array<bool, 3> done{};
    for (const auto current : order) {
      int64_t outer = 1, inner = 1;
      for (int64_t axis = 0; axis < static_cast<int64_t>(axes.size()); ++axis) {
        const int64_t count = done[axis] ? axes[axis].outputs : axes[axis].inputs;
        if (axis < current) outer *= count;
        if (axis > current) inner *= count;
      }
      resample_axis(axes[current], outer, inner, from, to);
      std::swap(from, to);
      done[current] = true;
    }
    return from;
  }
};

}  // namespace torchvq::kernels
