// CPU: one pass per sample and block of channels, without a tensor per axis.
#include "ops/resample_scale.h"

#include <algorithm>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/resample_scale.h"

namespace torchvq {
namespace {

using detail::Resampling;

constexpr int64_t kChannels = kernels::kResampledChannels;
// Elements for which a thread is worth its start.
constexpr int64_t kGrain = 16384;

kernels::ResampledAxis axis_of(Resampling direction, int64_t cells, int64_t positions) {
  switch (direction) {
    case Resampling::kAverage:
      return kernels::averaged_axis(cells, positions);
    case Resampling::kAverageBackward:
      return kernels::transposed(kernels::averaged_axis(cells, positions));
    case Resampling::kInterpolate:
      return kernels::interpolated_axis(cells, positions);
    case Resampling::kInterpolateBackward:
      return kernels::transposed(kernels::interpolated_axis(cells, positions));
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// Which axis comes first does not matter but for rounding: as on any device.
kernels::ScaleResampler resampler(Resampling direction, at::IntArrayRef size,
                                  at::IntArrayRef full) {
  kernels::ScaleResampler result{{}, {}, detail::to_tokens(direction)};
  const auto axes = static_cast<int64_t>(size.size());
  for (int64_t axis = 0; axis < axes; ++axis) {
    result.axes.push_back(axis_of(direction, size[axis], full[axis]));
    result.order.push_back(axis);
  }
  const bool backward =
      direction == Resampling::kAverageBackward || direction == Resampling::kInterpolateBackward;
  if (!backward) std::reverse(result.order.begin(), result.order.end());
  return result;
}

at::Tensor resample_scale(const at::Tensor& input_, at::IntArrayRef size,
                          c10::SymIntArrayRef sym_full, std::string_view direction) {
  const auto known = detail::check_resample_scale(input_, size, sym_full, direction);
  const auto full = C10_AS_INTARRAYREF_SLOW(sym_full);
  const auto input = input_.contiguous();
  const bool to_tokens = detail::to_tokens(known);
  const int64_t batch = input.size(0), dim = input.size(to_tokens ? 1 : 2);
  std::vector<int64_t> shape{batch, dim};
  if (to_tokens) {
    shape.insert(shape.begin() + 1, detail::check_grid("resample_scale", size));
  } else {
    shape.insert(shape.end(), full.begin(), full.end());
  }
  auto output = at::empty(shape, input.options());
  if (output.numel() == 0) return output;
  if (input.numel() == 0) return output.zero_();
  const auto scale = resampler(known, size, full);
  const int64_t from = scale.places(false) * dim, to = scale.places(true) * dim;
  const int64_t blocks = (dim + kChannels - 1) / kChannels;
  const int64_t grain = std::max<int64_t>(1, kGrain * blocks / std::max(from, to));
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "resample_scale", [&] {
    const auto* const source = input.const_data_ptr<scalar_t>();
    auto* const target = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, batch * blocks, grain, [&](int64_t begin, int64_t end) {
      const int64_t room = scale.scratch_size();
      std::vector<double> scratch(2 * room);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t sample = task / blocks, first = task % blocks * kChannels;
        scale.run(source + sample * from, dim, first, std::min(kChannels, dim - first),
                  scratch.data(), scratch.data() + room, target + sample * to);
      }
    });
  });
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("resample_scale", resample_scale); }

}  // namespace torchvq
