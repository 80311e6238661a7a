// Source of the kernel of latent_quantize.h; included by one file per instruction set, which
// defines TORCHVQ_LEVEL_NAME.
#include "kernels/cpu/latent_quantize.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kParts = kLatentGroup / kHalfLanes;

void nearest(const double* values, int64_t size, const double* numbers, int64_t count,
             int64_t* places) {
  for (int64_t i = 0; i < count; i += kLatentGroup) {
    Doubles x[kParts], least[kParts];
    Longs best[kParts];
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      x[part] = load<Doubles>(numbers + i + part * kHalfLanes);
      least[part] = Doubles{} + static_cast<double>(INFINITY);
      best[part] = Longs{};
    }
    for (int64_t k = 0; k < size; ++k) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const Doubles rest = x[part] - values[k];
        const Doubles distance =
            reinterpret_cast<Doubles>(reinterpret_cast<Longs>(rest) & INT64_MAX);
        const Longs nearer = distance < least[part];
        best[part] = nearer ? Longs{} + k : best[part];
        least[part] = nearer ? distance : least[part];
      }
    }
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      store(places + i + part * kHalfLanes, best[part]);
    }
  }
}

}  // namespace

LatentQuantizeKernel TORCHVQ_LEVEL_NAME(latent_quantize)() {
  LatentQuantizeKernel table;
  table.nearest = nearest;
  return table;
}

}  // namespace torchvq::kernels
