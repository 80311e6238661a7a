#include <torchvq/ops/ema_update_.h>

#include <torch/library.h>

#include "detail/codebook_state.h"
#include "detail/fixed_point.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/ema_update_.h"

namespace torchvq {

namespace detail {
namespace {

constexpr auto kEmaUpdate = "ema_update_";

}  // namespace

void check_weight(const char* op, const at::Tensor& weight, const at::Tensor& cluster_size) {
  check_floating(op, "weight", weight);
  bool fits = weight.dim() <= 2;
  for (int64_t axis = 1; fits && axis <= weight.dim(); ++axis) {
    fits = weight.sym_size(-axis) == 1 || weight.sym_size(-axis) == cluster_size.sym_size(-axis);
  }
  TORCH_CHECK_VALUE(fits, op, ": expected weight to broadcast to ", cluster_size.sym_sizes(),
                    " (H, K), but got shape ", weight.sym_sizes());
  check_same_device(op, "embed", cluster_size, "weight", weight);
}

void check_finite_weight(const char* op, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(weight.isfinite().all().item<bool>(), op,
                    ": expected weight to be finite, but got NaN or infinity");
}

bool check_ema_update_(const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                       const at::Tensor& embed, const EmaUpdateArguments& arguments) {
  check_codebook_state(kEmaUpdate, cluster_size, embed_avg, embed);
  check_dtype(kEmaUpdate, "counts", arguments.counts, at::kLong);
  check_rank(kEmaUpdate, "counts", arguments.counts, 2, "(H, K)");
  check_sums(kEmaUpdate, arguments.sums, arguments.exponents);
  for (int64_t axis = 0; axis < 3; ++axis) {
    check_size(kEmaUpdate, "sums", arguments.sums, axis + 1, embed.sym_size(axis), "as embed");
    if (axis < 2)
      check_size(kEmaUpdate, "counts", arguments.counts, axis, embed.sym_size(axis), "as embed");
  }
  check_same_device(kEmaUpdate, "embed", embed, "counts", arguments.counts);
  check_same_device(kEmaUpdate, "embed", embed, "sums", arguments.sums);
  check_decay(kEmaUpdate, arguments.decay);
  check_non_negative(kEmaUpdate, "eps", arguments.eps);
  if (arguments.weight.has_value()) check_weight(kEmaUpdate, *arguments.weight, cluster_size);
  return is_cosine(kEmaUpdate, arguments.metric);
}

}  // namespace detail

namespace ops {

void ema_update_(at::Tensor cluster_size, at::Tensor embed_avg, at::Tensor embed,
                 const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                 const EmaUpdateOptions& options) {
  using Signature = void(at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, double, double, std::string_view,
                         const std::optional<at::Tensor>&, bool, bool);
  static auto op = detail::op_handle<Signature>("torchvq::ema_update_");
  op.call(cluster_size, embed_avg, embed, counts, sums, exponents, options.decay, options.eps,
          options.metric, options.weight, options.from_codebook, options.finish);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "ema_update_(Tensor(a!) cluster_size, Tensor(b!) embed_avg, Tensor(c!) embed, Tensor counts, "
      "Tensor sums, "
      "Tensor exponents, *, float decay, float eps, str metric=\"euclidean\", Tensor? weight=None, "
      "bool from_codebook=False, bool finish=True) -> ()");
}
