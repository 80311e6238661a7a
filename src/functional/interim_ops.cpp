#include "functional/interim_ops.h"

#include <ATen/ATen.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>
#include <torchvq/ops/nearest_code.h>

#include "functional/unit_vectors.h"
namespace torchvq::ops {
NearestCodeOutput nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                               const NearestCodeOptions& options) {
  const bool cosine = options.metric() == "cosine";
  auto indices = at::empty({x.size(0)}, at::kLong);
  auto distances = at::empty({x.size(0)}, at::kFloat);
  const auto c = (cosine ? functional::unit_vectors(codebook) : codebook).to(at::kDouble);
  const auto half = c.square().sum(-1) / 2;
  for (int64_t first = 0; first < x.size(0); first += 1024) {
    const auto count = std::min<int64_t>(1024, x.size(0) - first);
    auto b = x.narrow(0, first, count);
    if (cosine) b = functional::unit_vectors(b);
    b = b.to(at::kDouble);
    const auto best = (half - b.matmul(c.t())).argmin(-1);
    indices.narrow(0, first, count).copy_(best);
    distances.narrow(0, first, count).copy_((b - c.index_select(0, best)).square().sum(-1));
  }
  return {indices, codebook.index_select(0, indices), distances};
}
at::Tensor code_exponents(const at::Tensor& codebook) {
  return at::zeros({1, codebook.size(1)}, at::kInt);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> code_statistics(const at::Tensor& x,
                                                               const at::Tensor& indices,
                                                               const at::Tensor& exponents,
                                                               const std::optional<at::Tensor>&) {
  auto scale = at::pow(2.0, 30 - exponents[0].to(at::kDouble));
  auto idx = indices[0];
  auto q = at::round(x[0].to(at::kDouble) * scale.index_select(0, idx).unsqueeze(1)).to(at::kLong);
  auto sums = at::zeros({1, 1, exponents.size(1), x.size(2)}, at::kLong);
  auto s = sums[0][0];
  s.index_add_(0, idx, q);
  return {idx.bincount({}, exponents.size(1)).unsqueeze(0), sums, exponents};
}
at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  auto scale = at::pow(2.0, exponents.to(at::kDouble) - 30);
  return (sums[0].to(at::kDouble) * scale.unsqueeze(-1)).to(dtype);
}
}  // namespace torchvq::ops
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
