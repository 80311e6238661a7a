#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

void ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed,
                        at::TensorList counts, at::TensorList x, at::TensorList indices,
                        at::TensorList mask, double decay, double eps, std::string_view metric,
                        const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  static auto op = detail::op_handle<decltype(ema_update_tokens_)>("torchvq::ema_update_tokens_");
  detail::without_gradient({cluster_size, embed_avg, embed, counts}, [&] {
    op.call(cluster_size, embed_avg, embed, counts, x, indices, mask, decay, eps, metric, weight,
            from_codebook, finish);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("ema_update_tokens_", ema_update_tokens_); }

}  // namespace torchvq
