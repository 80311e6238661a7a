#include "ops/ema_update_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

void ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                 const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                 double decay, double eps, std::string_view metric,
                 const std::optional<at::Tensor>& weight, bool /*from_codebook*/, bool /*finish*/) {
  detail::check_ema_update_(cluster_size, embed_avg, embed,
                            {counts, sums, exponents, decay, eps, metric, weight});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("ema_update_", ema_update_); }

}  // namespace torchvq
