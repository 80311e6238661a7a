#include "modules/implicit_search.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <torchvq/functional/estimate.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/sample_codes.h>
#include <torchvq/ops/snapshot.h>

#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;

at::Tensor search_block(const VectorQuantizeImpl& vq, const at::Tensor& x, const at::Tensor& codes,
                        double temperature, const at::Tensor& rng, int64_t block) {
  if (!vq.is_training() || !vq.options.stochastic_sample_codes()) {
    return F::quantize(x, codes, rng, std::nullopt, F::QuantizeOptions().estimator("none")).indices;
  }
  // Each token is treated as a head with one token and its own codes.
  const auto sampled = ops::sample_codes(x.flatten(0, 1).unsqueeze(1), codes.flatten(0, 1), rng,
                                         std::max(temperature, 0.0), "euclidean", block);
  return sampled.view({x.size(0), x.size(1)});
}

at::Tensor search(const VectorQuantizeImpl& vq, const Implicit& implicit,
                  const at::Tensor& residual, const at::Tensor& base, double temperature,
                  const at::Tensor& rng) {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::max<int64_t>(1, kImplicitBlock / base.numel());
  const auto x = residual.split(rows, 1);
  const auto given = implicit.condition.split(rows, 1);
  std::vector<at::Tensor> found;
  for (size_t block = 0; block < x.size(); ++block) {
    const auto codes = implicit.mlp->rows(base.unsqueeze(1), given[block].unsqueeze(2));
    found.push_back(
        search_block(vq, x[block], codes, temperature, rng, static_cast<int64_t>(block)));
  }
  return at::cat(found, 1);
}

}  // namespace

SearchResult choose_implicit(VectorQuantizeImpl& vq, const Implicit& implicit,
                             const at::Tensor& residual, const at::Tensor& tokens,
                             const std::optional<at::Tensor>& mask, const Request& request,
                             const std::optional<std::string>& estimator, const at::Tensor& rng,
                             const std::optional<at::Tensor>& given) {
  // A copy, because this step may replace dead codes before backward has used them.
  const auto base = ops::snapshot(codes_to_search(vq, request, tokens, residual.scalar_type()));
  const auto chosen =
      given ? *given : search(vq, implicit, residual, base, request.temperature, rng);
  const auto codes = implicit.mlp->rows(ops::lookup_codes(base, chosen), implicit.condition);
  const auto indices = mask ? chosen.masked_fill(mask->logical_not(), -1) : chosen;
  const auto quantized = F::estimate(
      residual, codes, rng,
      F::EstimateOptions()
          .estimator(estimator.value_or(estimator_of(vq, residual, takes_gradient(codes))))
          .variance(vq.options.directional_reparam_variance())
          .sync_update_v(vq.is_training() ? vq.options.sync_update_v() : 0));
  return {quantized, {residual, base, mask, codes, indices}, tokens};
}

at::Tensor own_codes(const Implicit& implicit, const at::Tensor& base) {
  return implicit.mlp->rows(base.unsqueeze(1), implicit.condition.unsqueeze(2));
}

}  // namespace torchvq::detail
