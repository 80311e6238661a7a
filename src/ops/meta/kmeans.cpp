#include "ops/kmeans.h"

#include <torch/library.h>

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> kmeans(const at::Tensor& x, int64_t codebook_size,
                                          const at::Tensor& rng, int64_t iterations,
                                          std::string_view metric,
                                          const std::optional<at::Tensor>& mask) {
  detail::check_kmeans(x, codebook_size, rng, iterations, metric, mask);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {
      x.new_empty_symint({x.sym_size(0), codebook_size, x.sym_size(2)}, x.options().dtype(dtype)),
      rng.new_empty_symint({x.sym_size(0), codebook_size})};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("kmeans", kmeans); }

}  // namespace torchvq
