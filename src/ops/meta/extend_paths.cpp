#include "ops/extend_paths.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::PathTensors extend_paths(const at::Tensor& residual, const at::Tensor& decoded,
                                 const at::Tensor& score, const at::Tensor& indices,
                                 const at::Tensor& codes, int64_t beam,
                                 const std::optional<at::Tensor>& candidates,
                                 std::optional<double> weight) {
  detail::check_extend_paths(residual, decoded, score, indices, codes, beam, candidates, weight);
  return detail::new_paths(residual, score, indices, codes, beam);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("extend_paths", extend_paths); }

}  // namespace torchvq
