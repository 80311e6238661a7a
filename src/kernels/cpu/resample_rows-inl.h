// Source of the kernels of resample_rows.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Bound by reading the inputs, which are few rows and stay in cache.
#include "kernels/cpu/resample_rows.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

/// Vectors of float64 whose sums are kept in registers.
constexpr int kSums = 4;

/// Columns [0, count * kHalfLanes) of one output.
template <int count, typename In, typename Out>
inline void resample_row(const WeightedRow* input, const WeightedRow* end, double divisor,
                         const In* from, int64_t step, Out* to) {
  Doubles sums[count] = {};
  for (; input != end; ++input) {
    const In* const row = from + input->row * step;
    const bool shared = input->share != 1;
    for (int n = 0; n < count; ++n) {
      Doubles value = widen(row + n * kHalfLanes);
      if (shared) value /= input->share;
      sums[n] += input->weight * value;
    }
  }
  for (int n = 0; n < count; ++n) {
    store_as(to + n * kHalfLanes, divisor == 1 ? sums[n] : sums[n] / divisor);
  }
}

template <typename In, typename Out>
inline void resample_element(const WeightedRow* input, const WeightedRow* end, double divisor,
                             const In* from, int64_t step, Out* to) {
  double sum = 0;
  for (; input != end; ++input) {
    sum += input->weight * ((double)from[input->row * step] / input->share);
  }
  *to = (Out)(sum / divisor);
}

template <typename In, typename Out>
void resample_rows(const AxisRows& axis, const In* from, int64_t from_step, Out* to,
                   int64_t to_step, int64_t width) {
  for (int64_t base = 0; base < axis.base_count; ++base) {
    const In* const inputs = from + axis.bases[base].input * from_step;
    Out* const outputs = to + axis.bases[base].output * to_step;
    const WeightedRow* begin = axis.inputs;
    for (int64_t o = 0; o < axis.output_count; ++o) {
      const OutputRow output = axis.outputs[o];
      const WeightedRow* const end = axis.inputs + output.end;
      Out* const row = outputs + output.row * to_step;
      int64_t c = 0;
      for (; c + kSums * kHalfLanes <= width; c += kSums * kHalfLanes) {
        resample_row<kSums>(begin, end, output.divisor, inputs + c, from_step, row + c);
      }
      for (; c + kHalfLanes <= width; c += kHalfLanes) {
        resample_row<1>(begin, end, output.divisor, inputs + c, from_step, row + c);
      }
      for (; c < width; ++c) {
        resample_element(begin, end, output.divisor, inputs + c, from_step, row + c);
      }
      begin = end;
    }
  }
}

}  // namespace

ResampleRowsKernel TORCHVQ_LEVEL_NAME(resample_rows)() {
  return {resample_rows<float, float>, resample_rows<float, double>, resample_rows<double, float>,
          resample_rows<double, double>};
}

}  // namespace torchvq::kernels
