// Averages of a map over the cells of a grid, linear interpolation of the cells, and the transposes
// of both. Torch-free. Each is a product of one sparse matrix per axis.
//
// A block of channels is transposed so that channels are the last axis of a scratch buffer in
// float64; then each axis is resampled in turn, and every inner loop runs over channels.
// Bound by memory for a few cells, by additions for overlapping ones.
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
    const double centre = (static_cast<double>(position) + 0.5) * static_cast<double>(cells) /
                          static_cast<double>(positions);
    const double place = std::clamp(centre - 0.5, 0.0, static_cast<double>(cells - 1));
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
  for (const auto& row : weights) {
    result.weights.insert(result.weights.end(), row.begin(), row.end());
  }
  return result;
}

/// `from` (outer, inputs, inner), which is changed where inputs are divided, to `to`
/// (outer, outputs, inner).
inline void resample_axis(const ResampledAxis& axis, int64_t outer, int64_t inner, double* from,
                          double* to) {
  for (int64_t o = 0; o < outer; ++o, from += axis.inputs * inner) {
    for (int64_t input = 0; !axis.shares.empty() && input < axis.inputs; ++input) {
      for (int64_t j = 0; j < inner; ++j) from[input * inner + j] /= axis.shares[input];
    }
    size_t next = 0;
    for (int64_t output = 0; output < axis.outputs; ++output, to += inner) {
      std::fill(to, to + inner, 0.0);
      for (int64_t input = axis.begins[output]; input < axis.ends[output]; ++input) {
        const double weight = axis.weights.empty() ? 1.0 : axis.weights[next++];
        const double* const row = from + input * inner;
        for (int64_t j = 0; j < inner; ++j) to[j] += weight * row[j];
      }
      for (int64_t j = 0; !axis.divisors.empty() && j < inner; ++j) to[j] /= axis.divisors[output];
    }
  }
}

/// Channels of one sample: a map (D, positions) and tokens (cells, D).
struct ScaleResampler {
  std::vector<ResampledAxis> axes;
  std::vector<int64_t> order;  ///< in which the axes are resampled
  bool to_tokens;

  int64_t places(bool outputs) const {
    int64_t count = 1;
    for (const auto& axis : axes) count *= outputs ? axis.outputs : axis.inputs;
    return count;
  }

  /// Channels [first, last) of `dim`.
  template <typename T>
  void run(const T* input, int64_t dim, int64_t first, int64_t last, T* output) const {
    const int64_t width = last - first, inputs = places(false), outputs = places(true);
    std::vector<double> from(inputs * width), to;
    for (int64_t place = 0; place < inputs; ++place) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t at = to_tokens ? (first + c) * inputs + place : place * dim + first + c;
        from[place * width + c] = static_cast<double>(input[at]);
      }
    }
    std::vector<bool> done(axes.size());
    for (const auto current : order) {
      int64_t outer = 1, inner = width;
      for (int64_t other = 0; other < static_cast<int64_t>(axes.size()); ++other) {
        const int64_t count = done[other] ? axes[other].outputs : axes[other].inputs;
        if (other < current) outer *= count;
        if (other > current) inner *= count;
      }
      to.resize(outer * axes[current].outputs * inner);
      resample_axis(axes[current], outer, inner, from.data(), to.data());
      std::swap(from, to);
      done[current] = true;
    }
    for (int64_t place = 0; place < outputs; ++place) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t at = to_tokens ? place * dim + first + c : (first + c) * outputs + place;
        output[at] = static_cast<T>(from[place * width + c]);
      }
    }
  }
};

}  // namespace torchvq::kernels
