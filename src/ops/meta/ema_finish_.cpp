#include "ops/ema_finish_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

void ema_finish_(at::Tensor& embed, const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                 double decay, double eps, std::string_view metric) {
  detail::check_ema_finish_(embed, cluster_size, embed_avg, decay, eps, metric);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("ema_finish_", ema_finish_); }

}  // namespace torchvq
