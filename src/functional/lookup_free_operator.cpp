// The operators of lookup_free_quantize.h.
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/library.h>

#include <torchvq/functional/lookup_free_quantize.h>

#include "functional/operator_options.h"

namespace torchvq::functional {
namespace {

using LookupFreeTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
               at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>>;

using LookupFreeLossTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

std::vector<at::Tensor> tensor_list(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::vector{*tensor} : std::vector<at::Tensor>();
}

LookupFreeTensors lookup_free_quantize_op(
    const at::Tensor& x, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& rotation, const std::optional<at::Tensor>& rng,
    at::TensorList totals, int64_t codebooks, bool channel_first, double scale,
    std::optional<double> radius, std::optional<double> soft_clamp, double fraction,
    double inv_temperature, bool estimates, bool scores, double entropy_weight,
    double diversity_gamma, double commitment_weight, std::optional<double> softplus_offset,
    bool vqp_compat, std::string_view group_name, std::string_view label) {
  auto step = lookup_free_quantize(
      x, {mask, rotation, rng, {}},
      LookupFreeOptions()
          .codebooks(codebooks)
          .channel_first(channel_first)
          .scale(scale)
          .radius(radius)
          .soft_clamp(soft_clamp)
          .fraction(fraction)
          .inv_temperature(inv_temperature)
          .estimates(estimates)
          .scores(scores)
          .weights({entropy_weight, diversity_gamma, commitment_weight, softplus_offset})
          .vqp_compat(vqp_compat)
          .ranks(ranks_named(group_name, label)),
      totals.empty() ? std::nullopt : std::optional(totals[0]));
  auto& [loss, per_sample, batch, commitment] = step.losses;
  return {std::move(step.quantized),
          std::move(step.indices),
          std::move(loss),
          std::move(per_sample),
          std::move(batch),
          std::move(commitment),
          std::move(step.signs.latents),
          std::move(step.signs.codes),
          tensor_list(step.signs.entropy_mask),
          tensor_list(step.totals)};
}

LookupFreeLossTensors lookup_free_losses_op(
    const at::Tensor& latents, const at::Tensor& codes, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& entropy_mask, const std::optional<at::Tensor>& totals,
    double scale, double inv_temperature, double entropy_weight, double diversity_gamma,
    double commitment_weight, std::optional<double> softplus_offset, bool vqp_compat) {
  const auto [loss, per_sample, batch, commitment] = lookup_free_losses(
      {latents, codes, {}, mask, entropy_mask}, totals,
      LookupFreeOptions()
          .scale(scale)
          .inv_temperature(inv_temperature)
          .scores(true)
          .weights({entropy_weight, diversity_gamma, commitment_weight, softplus_offset})
          .vqp_compat(vqp_compat));
  return {loss, per_sample, batch, commitment};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "lookup_free_quantize(Tensor x, *, Tensor? mask=None, Tensor? rotation=None, "
      "Tensor? rng=None, Tensor[] totals, int codebooks=1, bool channel_first=False, "
      "float scale=1., float? radius=None, float? soft_clamp=None, float fraction=1., "
      "float inv_temperature=100., bool estimates=False, bool scores=False, "
      "float entropy_weight=0.1, float diversity_gamma=1., float commitment_weight=0., "
      "float? softplus_offset=None, bool vqp_compat=False, str group_name='', str label='LFQ') "
      "-> (Tensor quantized, Tensor indices, Tensor loss, Tensor per_sample, Tensor batch, "
      "Tensor commitment, Tensor latents, Tensor codes, Tensor[] counted, Tensor[] totals)",
      torchvq::functional::lookup_free_quantize_op);
  m.def(
      "lookup_free_losses(Tensor latents, Tensor codes, *, Tensor? mask=None, "
      "Tensor? entropy_mask=None, Tensor? totals=None, float scale=1., "
      "float inv_temperature=100., float entropy_weight=0.1, float diversity_gamma=1., "
      "float commitment_weight=0., float? softplus_offset=None, bool vqp_compat=False) "
      "-> (Tensor loss, Tensor per_sample, Tensor batch, Tensor commitment)",
      torchvq::functional::lookup_free_losses_op);
}
