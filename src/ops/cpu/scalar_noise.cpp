#include "ops/scalar_noise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/random.h"
#include "torchvq/random_purpose.h"

namespace torchvq {
namespace {

constexpr int64_t kMovedPerTask = 4096;

template <typename T>
void move_codes(const at::Tensor& codes, at::IntArrayRef levels, uint64_t key, int64_t threshold,
                at::Tensor& moved) {
  const auto steps = detail::half_steps<T>(levels);
  const auto dim = static_cast<int64_t>(levels.size());
  const T* from = codes.const_data_ptr<T>();
  T* to = moved.mutable_data_ptr<T>();
  at::parallel_for(0, codes.numel(), kMovedPerTask, [&](int64_t begin, int64_t end) {
    int64_t feature = begin % dim;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = kernels::random_bits(key, static_cast<uint64_t>(i));
      const auto u = static_cast<T>(kernels::uniform_from_bits(bits, detail::kNoisePrecision));
      const T noise = (u * 2 - 1) * steps[static_cast<size_t>(feature)];
      const bool moves = static_cast<int64_t>(bits & detail::kChoiceMask) < threshold;
      to[i] = from[i] + (moves ? noise : T{0});
      feature = feature + 1 == dim ? 0 : feature + 1;
    }
  });
}

at::Tensor scalar_noise(const at::Tensor& codes_, at::IntArrayRef levels, const at::Tensor& rng_,
                        double fraction, int64_t stream) {
  detail::check_scalar_noise(codes_, levels, rng_, fraction);
  const auto codes = codes_.contiguous(), rng = rng_.contiguous();
  const auto* state = rng.const_data_ptr<int64_t>();
  const auto key = kernels::random_key(
      static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]),
      static_cast<uint64_t>(RandomPurpose::kNoise), static_cast<uint64_t>(stream));
  auto moved = at::empty(codes.sizes(), codes.options());
  const auto threshold = detail::noise_threshold(fraction);
  if (codes.scalar_type() == at::kDouble) {
    move_codes<double>(codes, levels, key, threshold, moved);
  } else {
    move_codes<float>(codes, levels, key, threshold, moved);
  }
  return moved;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("scalar_noise", scalar_noise); }

}  // namespace torchvq
