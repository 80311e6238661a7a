#include "ops/ema_update_tokens_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

void ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed,
                        at::TensorList counts, at::TensorList x, at::TensorList indices,
                        at::TensorList mask, double decay, double eps, std::string_view metric,
                        const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  detail::check_ema_update_tokens_(
      {cluster_size, embed_avg, embed, counts, x, indices, mask, decay, eps, metric, weight});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("ema_update_tokens_", ema_update_tokens_); }

}  // namespace torchvq
