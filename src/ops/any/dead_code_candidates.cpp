// Any device, CPU included: sorts and gathers; only the hash has a CPU
// kernel (detail/row_keys.cpp).
#include "ops/dead_code_candidates.h"

#include <torch/library.h>

#include "detail/dead_codes.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> dead_code_candidates(const at::Tensor& x, const at::Tensor& rng,
                                                        int64_t count,
                                                        const std::optional<at::Tensor>& mask,
                                                        std::string_view metric) {
  const bool unit = detail::check_dead_code_candidates(x, rng, count, mask, metric);
  return detail::select_candidates(x, rng, count, mask, unit);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("dead_code_candidates", dead_code_candidates);
}

}  // namespace torchvq
