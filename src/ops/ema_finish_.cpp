#include <torchvq/ops/ema_finish_.h>

#include <torch/library.h>

#include "detail/codebook_state.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/ema_finish_.h"

namespace torchvq {

namespace detail {

bool check_ema_finish_(const at::Tensor& embed, const at::Tensor& cluster_size,
                       const at::Tensor& embed_avg, double decay, double eps,
                       std::string_view metric) {
  constexpr auto op = "ema_finish_";
  check_codebook_state(op, cluster_size, embed_avg, embed);
  check_decay(op, decay);
  check_non_negative(op, "eps", eps);
  return is_cosine(op, metric);
}

}  // namespace detail

namespace ops {

void ema_finish_(at::Tensor embed, const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                 const EmaFinishOptions& options) {
  using Signature =
      void(at::Tensor&, const at::Tensor&, const at::Tensor&, double, double, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::ema_finish_");
  op.call(embed, cluster_size, embed_avg, options.decay, options.eps, options.metric);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "ema_finish_(Tensor(a!) embed, Tensor cluster_size, Tensor embed_avg, *, float decay, float "
      "eps, str metric=\"euclidean\") -> ()");
}
