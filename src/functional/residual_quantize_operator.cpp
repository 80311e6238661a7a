// The operator of residual_quantize.h. The state is that of learn_codebooks_(): one list for all
// levels, with a shared codebook once.
#include <string_view>
#include <tuple>
#include <utility>

#include <torch/library.h>

#include <torchvq/functional/residual_quantize.h>

#include "functional/operator_options.h"

namespace torchvq::functional {
namespace {

using StepTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>,
                               std::vector<at::Tensor>>;

StepTensors step_op(const at::Tensor& tokens, at::TensorList codebooks, at::TensorList state,
                    at::TensorList rng, at::TensorList step_counts,
                    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& depth,
                    at::TensorList targets, at::TensorList totals, int64_t heads, bool separate,
                    bool zeros_for_masked, bool training, bool learns, bool finishes, bool draws,
                    bool returns_codes, std::string_view metric, std::string_view estimator,
                    std::string_view level_estimator, bool estimates_levels, double handed_on,
                    int64_t beam, at::ArrayRef<double> beam_weights,
                    std::optional<double> temperature, double gradient_temperature, double variance,
                    double sync_update_v, double commitment_weight,
                    bool commitment_use_cross_entropy_loss, bool pulls_codes,
                    double diversity_weight, double diversity_temperature, double orthogonal_weight,
                    bool orthogonal_active_codes_only, std::optional<int64_t> orthogonal_max_codes,
                    double decay, double eps, bool ema_update, bool manual_ema_update,
                    bool by_gradient, double threshold, double threshold_fraction,
                    double reset_cluster_size, bool vqp_compat, std::string_view reduction,
                    std::string_view signature, std::string_view group_name, std::string_view label,
                    int64_t sync_every) {
  ResidualQuantizeOptions options;
  options.learns(learns)
      .finishes(finishes)
      .draws(draws)
      .returns_codes(returns_codes)
      .estimator(std::string(estimator))
      .estimates_levels(estimates_levels)
      .handed_on(handed_on)
      .beam(beam)
      .beam_weights(beam_weights.vec());
  options.layout().heads(heads).separate(separate).zeros_for_masked(zeros_for_masked);
  options.search() = quantize_options(metric, level_estimator, temperature, gradient_temperature,
                                      variance, sync_update_v);
  options.losses() =
      search_loss_options(training, metric, commitment_weight, commitment_use_cross_entropy_loss,
                          pulls_codes, diversity_weight, diversity_temperature)
          .orthogonal_weight(orthogonal_weight)
          .orthogonal_active_codes_only(orthogonal_active_codes_only)
          .orthogonal_max_codes(orthogonal_max_codes);
  if (vqp_compat) options.losses().vqp_compat(TokensBefore{{}, {}, heads, separate});
  options.learning() = codebook_options(eps, metric, ranks_named(group_name, label, reduction));
  averages(options.learning(), decay, ema_update, manual_ema_update, by_gradient, signature);
  dead_codes(options.learning(), threshold, threshold_fraction, reset_cluster_size, vqp_compat);
  options.learning().sync_every(sync_every);
  auto step = residual_quantize_(tokens,
                                 {codebooks.vec(), states_of("residual_quantize_", state, rng),
                                  step_counts.vec(), mask, depth, targets.vec()},
                                 options, totals.vec());
  return {std::move(step.quantized), std::move(step.indices), std::move(step.losses),
          std::move(step.codes), std::move(step.totals)};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_quantize_(Tensor tokens, Tensor[] codebooks, Tensor(a!)[] state, "
      "Tensor(b!)[] rng, Tensor(c!)[] step_counts, *, Tensor? mask=None, Tensor? depth=None, "
      "Tensor[] targets, Tensor[] totals, int heads=1, bool separate=False, "
      "bool zeros_for_masked=True, bool training=False, bool learns=False, bool finishes=False, "
      "bool draws=False, bool returns_codes=False, "
      "str metric='euclidean', str estimator='none', str level_estimator='none', "
      "bool estimates_levels=False, float handed_on=0., int beam=1, float[] beam_weights=[], "
      "float? temperature=None, float gradient_temperature=1., float variance=0.005, "
      "float sync_update_v=0., float commitment_weight=1., "
      "bool commitment_use_cross_entropy_loss=False, bool pulls_codes=False, "
      "float diversity_weight=0., float diversity_temperature=100., float orthogonal_weight=0., "
      "bool orthogonal_active_codes_only=False, int? orthogonal_max_codes=None, "
      "float decay=0.8, float eps=1e-5, bool ema_update=True, bool manual_ema_update=False, "
      "bool by_gradient=False, float threshold=0., float threshold_fraction=0., "
      "float reset_cluster_size=0., bool vqp_compat=False, str reduction='exact', "
      "str signature='', str group_name='', str label='quantizer', int sync_every=1) "
      "-> (Tensor quantized, Tensor indices, Tensor losses, Tensor[] codes, Tensor[] totals)",
      torchvq::functional::step_op);
}
