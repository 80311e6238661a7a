#include "ops/dead_code_candidates.h"

#include <torch/library.h>

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> dead_code_candidates(const at::Tensor& x, const at::Tensor& rng,
                                                        int64_t count,
                                                        const std::optional<at::Tensor>& mask,
                                                        std::string_view metric) {
  detail::check_dead_code_candidates(x, rng, count, mask, metric);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {rng.new_empty_symint({x.sym_size(0), count}),
          x.new_empty_symint({x.sym_size(0), count, x.sym_size(2)}, x.options().dtype(dtype))};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("dead_code_candidates", dead_code_candidates); }

}  // namespace torchvq
