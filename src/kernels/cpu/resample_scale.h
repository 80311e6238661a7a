// Averages of a map over the cells of a grid, linear interpolation of the cells, the sum of a
// convolution over its interpolated taps, and the transposes, as one step per axis. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/resample_rows.h"

namespace torchvq::kernels {

/// The share of a position in a cell, in one tap of a convolution.
struct CellShare {
  int64_t position, cell, tap;
  double weight;
};

/// The shares along one axis. A mean divides by the number of positions of a cell.
struct ScaleAxis {
  int64_t positions, cells, taps;
  bool mean;
  std::vector<CellShare> shares;
};

/// Cell i averages positions [floor(i N / n), ceil((i + 1) N / n)).
inline ScaleAxis averaged_axis(int64_t cells, int64_t positions) {
  ScaleAxis axis{positions, cells, 1, true, {}};
  axis.shares.reserve(positions + cells);
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t end = ((cell + 1) * positions + cells - 1) / cells;
    for (int64_t position = cell * positions / cells; position < end; ++position) {
      axis.shares.push_back({position, cell, 0, 1});
    }
  }
  return axis;
}

/// Linear between the centres of cells; positions beyond the outermost centres repeat the edge. Of
/// several taps, an odd number, position p is the sum over taps t of what tap t has at
/// p + t - taps / 2: a convolution, padded with zeros.
inline ScaleAxis interpolated_axis(int64_t cells, int64_t positions, int64_t taps) {
  ScaleAxis axis{positions, cells, taps, false, {}};
  axis.shares.reserve(2 * positions * taps);
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t read = position + tap - taps / 2;
      if (read < 0 || read >= positions) continue;
      const auto numerator = static_cast<double>(2 * read * cells + cells - positions);
      const double place = std::clamp(numerator / static_cast<double>(2 * positions), 0.0,
                                      static_cast<double>(cells - 1));
      const auto before = static_cast<int64_t>(place);
      const double rest = place - static_cast<double>(before);
      axis.shares.push_back({position, before, tap, 1 - rest});
      if (rest > 0) axis.shares.push_back({position, before + 1, tap, rest});
    }
  }
  return axis;
}

/// One axis of a step: its matrix, and its repetitions along the other axes.
struct AxisStep {
  std::vector<WeightedRow> inputs;
  std::vector<OutputRow> outputs;
  std::vector<RowBases> bases;

  AxisRows rows() const {
    return {inputs.data(), outputs.data(), bases.data(), static_cast<int64_t>(outputs.size()),
            static_cast<int64_t>(bases.size())};
  }
};

/// The steps from a map to the tokens of a scale, or back, one per axis.
///
/// Axes that are cells already come before those that are positions still. Rows of cells are in the
/// order (cells of all these axes, taps of all these axes), then the positions.
class ScaleSteps {
 public:
  /// The positions become cells from the first axis to the last, and the other way round back.
  ScaleSteps(const std::vector<ScaleAxis>& axes, bool to_cells) {
    int64_t positions = 1;
    for (const auto& axis : axes) positions *= axis.positions;
    most_rows_ = positions;
    int64_t cells_before = 1, taps_before = 1;
    for (const auto& axis : axes) {
      positions /= axis.positions;
      steps_.push_back(step_of(axis, {cells_before, taps_before, positions}, to_cells));
      cells_before *= axis.cells;
      taps_before *= axis.taps;
      most_rows_ = std::max(most_rows_, cells_before * taps_before * positions);
    }
    if (!to_cells) std::reverse(steps_.begin(), steps_.end());
  }

  const std::vector<AxisStep>& steps() const { return steps_; }
  /// Rows of the largest map, tokens, or what lies between.
  int64_t most_rows() const { return most_rows_; }

 private:
  struct Around {
    int64_t cells, taps, positions;  ///< of the axes before, and after
  };

  static AxisStep step_of(const ScaleAxis& axis, const Around& around, bool to_cells) {
    AxisStep step;
    step.outputs.reserve(axis.positions + axis.cells * axis.taps);
    step.bases.reserve(around.cells * around.taps * around.positions);
    const int64_t taps = around.taps * axis.taps;
    const auto cell_row = [&](const CellShare& share) {
      return (share.cell * taps + share.tap) * around.positions;
    };
    std::vector<double> sizes(axis.cells, axis.mean ? 0 : 1);
    const int64_t outputs = to_cells ? axis.cells * axis.taps : axis.positions;
    const auto output_of = [&](const CellShare& share) {
      return to_cells ? share.cell * axis.taps + share.tap : share.position;
    };
    std::vector<int64_t> next(outputs + 1, 0);  // where the next input of each output goes
    for (const auto& share : axis.shares) {
      sizes[share.cell] += axis.mean ? 1 : 0;
      ++next[output_of(share) + 1];
    }
    for (int64_t output = 0; output < outputs; ++output) {
      next[output + 1] += next[output];
      const CellShare place{output, output / axis.taps, output % axis.taps, 0};
      step.outputs.push_back({to_cells ? cell_row(place) : output * around.positions,
                              next[output + 1], to_cells ? sizes[place.cell] : 1});
    }
    step.inputs.resize(axis.shares.size());
    for (const auto& share : axis.shares) {
      const int64_t row = to_cells ? share.position * around.positions : cell_row(share);
      step.inputs[next[output_of(share)]++] = {row, share.weight, to_cells ? 1 : sizes[share.cell]};
    }
    for (int64_t cell = 0; cell < around.cells; ++cell) {
      for (int64_t tap = 0; tap < around.taps; ++tap) {
        for (int64_t after = 0; after < around.positions; ++after) {
          const int64_t before = cell * around.taps + tap;
          const int64_t map_row = before * axis.positions * around.positions + after;
          const int64_t token_row =
              (cell * axis.cells * taps + tap * axis.taps) * around.positions + after;
          step.bases.push_back(to_cells ? RowBases{map_row, token_row}
                                        : RowBases{token_row, map_row});
        }
      }
    }
    return step;
  }

  std::vector<AxisStep> steps_;
  int64_t most_rows_ = 0;
};

}  // namespace torchvq::kernels
