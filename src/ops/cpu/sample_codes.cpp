#include "ops/sample_codes.h"

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "kernels/cpu/sample_codes.h"
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

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric_name, int64_t stream) {
  const auto metric = detail::check_sample_codes(x, codebook, rng, temperature, metric_name);
  // The first of equal scores must win on every device, and only the search guarantees this.
  if (temperature == 0) return detail::nearest_codes(x, codebook, metric);
  const auto key = read_key(rng, stream);
  return detail::choose_by_score(
      x, codebook, metric, [&](const at::Tensor& logits, int64_t position) {
        const auto scores = logits.contiguous();
        const int64_t rows = scores.size(0), size = scores.size(1);
        auto indices = at::empty({rows}, scores.options().dtype(at::kLong));
        const auto* score = scores.const_data_ptr<double>();
        auto* index = indices.mutable_data_ptr<int64_t>();
        at::parallel_for(0, rows, 1024 / size + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            index[row] = kernels::sample_code(score + row * size, size, temperature, key,
                                              static_cast<uint64_t>(position + row * size));
          }
        });
        return indices;
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
