#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

at::Tensor replace_with_candidates_(at::TensorList embed, at::TensorList embed_avg,
                                    at::TensorList cluster_size, at::TensorList keys,
                                    at::TensorList rows, at::TensorList counts, at::TensorList rng,
                                    double threshold, double threshold_fraction,
                                    double reset_cluster_size, bool replace_used,
                                    std::optional<double> most_per_token) {
  static auto op =
      detail::op_handle<decltype(replace_with_candidates_)>("torchvq::replace_with_candidates_");
  at::Tensor replaced;
  detail::without_gradient({embed, embed_avg, cluster_size}, [&] {
    replaced = op.call(embed, embed_avg, cluster_size, keys, rows, counts, rng, threshold,
                       threshold_fraction, reset_cluster_size, replace_used, most_per_token);
  });
  return replaced;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("replace_with_candidates_", replace_with_candidates_);
}

}  // namespace torchvq
