#include "ops/sample_codes.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "kernels/cpu/sample_codes.h"
#include "kernels/random.h"
#include "ops/any/score_blocks.h"

namespace torchvq {
namespace {

uint64_t read_key(const at::Tensor& rng_, int64_t stream) {
  const auto rng = rng_.contiguous();
  const auto* state = rng.const_data_ptr<int64_t>();
  return kernels::random_key(static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]),
                             static_cast<uint64_t>(RandomPurpose::kCodeSampling),
                             static_cast<uint64_t>(stream));
}

struct Draw {
  double temperature;
  uint64_t key;
  kernels::SampleCodesKernel kernel;
};

// Codes whose hurdles are computed together.
constexpr int64_t kBlock = 256;

/// The code of one token; `position` numbers scores[0] among all draws.
int64_t sample_code(const double* scores, int64_t size, uint64_t position, const Draw& draw) {
  const double best = draw.kernel.best(scores, size);
  if (!std::isfinite(best)) return 0;
  int64_t chosen = 0;
  double most = -1.0, hurdles[kBlock];
  for (int64_t from = 0; from < size; from += kBlock) {
    const int64_t count = std::min(kBlock, size - from);
    const auto first = position + static_cast<uint64_t>(from);
    draw.kernel.hurdles(scores + from, count, best, draw.temperature, draw.key, first, hurdles);
    for (int64_t k = 0; k < count; ++k) {
      if (most * hurdles[k] > 1.0) continue;
      double chance = std::exp((scores[from + k] - best) / draw.temperature);
      if (chance > 0.0) {
        const auto bits = kernels::random_bits(draw.key, first + static_cast<uint64_t>(k));
        chance /= -kernels::log_of_uniform(kernels::uniform_from_bits(bits, 53));
      }
      if (chance > most) {
        most = chance;
        chosen = from + k;
      }
    }
  }
  return chosen;
}

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric_name, int64_t stream) {
  const auto metric = detail::check_sample_codes(x, codebook, rng, temperature, metric_name);
  // The first of equal scores must win on every device, and only the search guarantees this.
  if (temperature == 0) return detail::nearest_codes(x, codebook, metric);
  const Draw draw{temperature, read_key(rng, stream),
                  kernels::sample_codes_kernel(kernels::cpu_level())};
  return detail::choose_by_score(
      x, codebook, metric, [&](const at::Tensor& logits, int64_t position) {
        const auto scores = logits.contiguous();
        const int64_t rows = scores.size(0), size = scores.size(1);
        auto indices = at::empty({rows}, scores.options().dtype(at::kLong));
        const auto* score = scores.const_data_ptr<double>();
        auto* index = indices.mutable_data_ptr<int64_t>();
        at::parallel_for(0, rows, 1024 / size + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            index[row] = sample_code(score + row * size, size,
                                     static_cast<uint64_t>(position + row * size), draw);
          }
        });
        return indices;
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
