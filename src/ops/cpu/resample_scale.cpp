// CPU: an axis of each sample after the other, in blocks of channels.
#include "ops/resample_scale.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/resample_scale.h"

namespace torchvq {
namespace {

using detail::Resampling;

// Channels that pass through the buffers together, which then stay in cache: a multiple of every
// vector.
constexpr int64_t kColumns = 32;
// Elements for which a thread is worth its start.
constexpr int64_t kGrain = 16384;

kernels::ScaleSteps steps_of(Resampling direction, at::IntArrayRef size, at::IntArrayRef full,
                             at::IntArrayRef kernel) {
  std::vector<kernels::ScaleAxis> axes;
  for (size_t axis = 0; axis < size.size(); ++axis) {
    axes.push_back(detail::averages(direction)
                       ? kernels::averaged_axis(size[axis], full[axis])
                       : kernels::interpolated_axis(size[axis], full[axis], kernel[axis]));
  }
  return {axes, detail::to_tokens(direction)};
}

/// A sample: tokens are rows, and a map is rows or channels.
struct Sample {
  int64_t inputs, outputs, dim;
  bool turns_input, turns_output;
};

/// The buffers of a thread, of kColumns columns.
template <typename T>
struct Scratch {
  Scratch(const Sample& sample, const kernels::ScaleSteps& steps)
      : input(sample.turns_input ? sample.inputs * kColumns : 0),
        output(sample.turns_output ? sample.outputs * kColumns : 0),
        from(steps.steps().size() > 1 ? steps.most_rows() * kColumns : 0),
        to(steps.steps().size() > 2 ? steps.most_rows() * kColumns : 0) {}

  std::vector<T> input, output;
  std::vector<double> from, to;
};

template <typename T>
void resample_rows(const kernels::ScaleSteps& plan, const T* from, int64_t from_step, T* to,
                   int64_t to_step, int64_t width, Scratch<T>& scratch) {
  const auto kernel = kernels::resample_rows_kernel(kernels::cpu_level());
  const auto& steps = plan.steps();
  const auto first = [&](auto only, auto begin, auto end) {
    if (steps.size() == 1) return only(steps[0].rows(), from, from_step, to, to_step, width);
    double *done = scratch.from.data(), *next = scratch.to.data();
    begin(steps[0].rows(), from, from_step, done, kColumns, width);
    for (size_t axis = 1; axis + 1 < steps.size(); ++axis) {
      kernel.wide(steps[axis].rows(), done, kColumns, next, kColumns, width);
      std::swap(done, next);
    }
    end(steps.back().rows(), done, kColumns, to, to_step, width);
  };
  if constexpr (sizeof(T) == sizeof(double)) {
    first(kernel.wide, kernel.wide, kernel.wide);
  } else {
    first(kernel.narrow, kernel.widening, kernel.narrowing);
  }
}

/// Columns [first, first + width) of a sample.
template <typename T>
void resample_columns(const kernels::ScaleSteps& steps, const Sample& sample, const T* from, T* to,
                      int64_t first, int64_t width, Scratch<T>& scratch) {
  T *const inputs = scratch.input.data(), *const outputs = scratch.output.data();
  for (int64_t c = 0; sample.turns_input && c < width; ++c) {
    const T* const channel = from + (first + c) * sample.inputs;
    for (int64_t row = 0; row < sample.inputs; ++row) inputs[row * kColumns + c] = channel[row];
  }
  resample_rows(steps, sample.turns_input ? inputs : from + first,
                sample.turns_input ? kColumns : sample.dim,
                sample.turns_output ? outputs : to + first,
                sample.turns_output ? kColumns : sample.dim, width, scratch);
  for (int64_t c = 0; sample.turns_output && c < width; ++c) {
    T* const channel = to + (first + c) * sample.outputs;
    for (int64_t row = 0; row < sample.outputs; ++row) channel[row] = outputs[row * kColumns + c];
  }
}

/// `from` (samples, inputs, dim) to `to` (samples, outputs, dim); see Sample.
template <typename T>
void resample_samples(const kernels::ScaleSteps& steps, const Sample& sample, int64_t samples,
                      const T* from, T* to) {
  const int64_t blocks = (sample.dim + kColumns - 1) / kColumns;
  const int64_t work = steps.most_rows() * std::min(sample.dim, kColumns);
  at::parallel_for(0, samples * blocks, std::max<int64_t>(1, kGrain / work),
                   [&](int64_t begin, int64_t end) {
                     Scratch<T> scratch(sample, steps);
                     for (int64_t task = begin; task < end; ++task) {
                       const int64_t at = task / blocks, first = task % blocks * kColumns;
                       resample_columns(steps, sample, from + at * sample.inputs * sample.dim,
                                        to + at * sample.outputs * sample.dim, first,
                                        std::min(kColumns, sample.dim - first), scratch);
                     }
                   });
}

at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size, c10::SymIntArrayRef full,
                          std::string_view direction, at::IntArrayRef kernel) {
  const auto known = detail::check_resample_scale(input, size, full, direction, kernel);
  return detail::resample_on_cpu(input, size, C10_AS_INTARRAYREF_SLOW(full), known, kernel,
                                 /*map_of_rows=*/false);
}

}  // namespace

at::Tensor detail::resample_on_cpu(const at::Tensor& input_, at::IntArrayRef size,
                                   at::IntArrayRef full, Resampling direction,
                                   at::IntArrayRef kernel, bool map_of_rows) {
  const auto input = input_.contiguous();
  const bool to_tokens = detail::to_tokens(direction);
  const auto axes = taps_of_axes(size, kernel);
  const int64_t taps = c10::multiply_integers(axes), positions = c10::multiply_integers(full);
  const int64_t cells = c10::multiply_integers(size), batch = input.size(0);
  const int64_t features = to_tokens ? input.size(map_of_rows ? 2 : 1) : input.size(2) / taps;
  std::vector<int64_t> shape{batch, cells, taps * features};
  if (!to_tokens && map_of_rows) shape = {batch, positions, features};
  if (!to_tokens && !map_of_rows) {
    shape = {batch, features};
    shape.insert(shape.end(), full.begin(), full.end());
  }
  auto output = at::empty(shape, input.options());
  if (output.numel() == 0) return output;
  if (input.numel() == 0) return output.zero_();
  const auto steps = steps_of(direction, size, full, axes);
  const Sample sample{to_tokens ? positions : cells * taps, to_tokens ? cells * taps : positions,
                      features, to_tokens && !map_of_rows, !to_tokens && !map_of_rows};
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "resample_scale", [&] {
    resample_samples(steps, sample, batch, input.const_data_ptr<scalar_t>(),
                     output.mutable_data_ptr<scalar_t>());
  });
  return output;
}

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("resample_scale", resample_scale); }

}  // namespace torchvq
