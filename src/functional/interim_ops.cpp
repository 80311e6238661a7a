#include "functional/interim_ops.h"

#include <ATen/ATen.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>
#include <torchvq/ops/nearest_code.h>

#include "functional/unit_vectors.h"
namespace torchvq::functional {
at::Tensor interim_kmeans(const at::Tensor& sample, int64_t size, int64_t iterations, int64_t seed,
                          const std::string& metric) {
  auto gen = at::detail::createCPUGenerator(seed);
  auto c = sample.index_select(0, at::randperm(sample.size(0), gen).narrow(0, 0, size)).clone();
  for (int i = 0; i < iterations; ++i) {
    auto idx = ops::nearest_code(sample, c, ops::NearestCodeOptions().metric(metric)).indices;
    auto n = idx.bincount({}, size);
    auto s =
        at::zeros({size, sample.size(1)}, at::kDouble).index_add(0, idx, sample.to(at::kDouble));
    c = at::where(n.unsqueeze(1).gt(0), (s / n.clamp_min(1).unsqueeze(1)).to(at::kFloat), c);
    if (metric == "cosine") c = unit_vectors(c);
  }
  return c;
}
}  // namespace torchvq::functional
