#include <torchvq/functional/wide_codes.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <string_view>

#include <torchvq/ops/ema_finish_.h>

#include "detail/checks.h"

namespace torchvq::functional {

at::Tensor wide_codes(const at::Tensor& embed, const at::Tensor& cluster_size,
                      const at::Tensor& embed_avg, double eps, const std::string& metric) {
  detail::check_defined("wide_codes", "embed", embed);
  detail::check_defined("wide_codes", "cluster_size", cluster_size);
  detail::check_defined("wide_codes", "embed_avg", embed_avg);
  at::NoGradGuard no_grad;
  const auto wide = embed.to(embed_avg.scalar_type());
  const auto averaged = wide.clone();
  // A decay of 1 moves no unused code.
  ops::ema_finish_(averaged, cluster_size, embed_avg, {.decay = 1, .eps = eps, .metric = metric});
  return at::where(averaged.to(embed.scalar_type()).eq(embed), averaged, wide);
}

}  // namespace torchvq::functional

namespace {

at::Tensor wide_codes_op(const at::Tensor& embed, const at::Tensor& cluster_size,
                         const at::Tensor& embed_avg, double eps, std::string_view metric) {
  return torchvq::functional::wide_codes(embed, cluster_size, embed_avg, eps, std::string(metric));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "wide_codes(Tensor embed, Tensor cluster_size, Tensor embed_avg, *, float eps=1e-5, str "
      "metric='euclidean') "
      "-> Tensor",
      wide_codes_op);
}
