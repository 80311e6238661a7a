#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

at::Tensor replace_dead_codes_(at::TensorList embed, at::TensorList embed_avg,
                               at::TensorList cluster_size, at::TensorList x, at::TensorList counts,
                               at::TensorList rng, at::TensorList mask, double threshold,
                               double threshold_fraction, double reset_cluster_size,
                               std::string_view metric, bool replace_used,
                               std::optional<double> most_per_token) {
  static auto op = detail::op_handle<decltype(replace_dead_codes_)>("torchvq::replace_dead_codes_");
  at::Tensor replaced;
  detail::without_gradient({embed, embed_avg, cluster_size}, [&] {
    replaced =
        op.call(embed, embed_avg, cluster_size, x, counts, rng, mask, threshold, threshold_fraction,
                reset_cluster_size, metric, replace_used, most_per_token);
  });
  return replaced;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("replace_dead_codes_", replace_dead_codes_); }

}  // namespace torchvq
