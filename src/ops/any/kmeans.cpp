// Any device, CPU included: most of the work is done by nearest_code and code_statistics, which
// have kernels of their own.
#include "ops/kmeans.h"

#include <torch/library.h>

#include "ops/kmeans_steps.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> kmeans(const at::Tensor& x, int64_t codebook_size,
                                          const at::Tensor& rng, int64_t iterations,
                                          std::string_view metric,
                                          const std::optional<at::Tensor>& mask) {
  const bool unit = detail::check_kmeans(x, codebook_size, rng, iterations, metric, mask);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto codebook = x.new_zeros({x.size(0), codebook_size, x.size(2)}, x.options().dtype(dtype));
  auto counts = rng.new_zeros({x.size(0), codebook_size});
  for (int64_t head = 0; head < x.size(0); ++head) {
    auto head_mask = mask;
    if (mask.has_value() && mask->dim() == 2) head_mask = mask->select(0, head);
    const auto points = detail::usable_points(x.select(0, head), head_mask, rng, unit);
    if (points.rows.size(0) == 0) continue;
    const auto codes = detail::cluster(points, codebook_size, rng, iterations, unit);
    codebook.select(0, head).copy_(codes);
    counts.select(0, head).copy_(detail::count_points(points, codes, unit));
  }
  return {codebook, counts};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("kmeans", kmeans); }

}  // namespace torchvq
