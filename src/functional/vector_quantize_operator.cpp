// The operators of vector_quantize.h. The state is that of learn_codebooks_().
#include <string_view>
#include <tuple>
#include <utility>

#include <torch/library.h>

#include <torchvq/functional/vector_quantize.h>

#include "functional/operator_options.h"

namespace torchvq::functional {
namespace {

using StepTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                               at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>>;

StepTensors step_op(const at::Tensor& x, const at::Tensor& codebook, at::TensorList state,
                    const at::Tensor& rng, const at::Tensor& step_counts,
                    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& targets,
                    const std::optional<at::Tensor>& weight, at::TensorList affine,
                    at::TensorList totals, const std::optional<at::Tensor>& tokens,
                    const std::optional<at::Tensor>& token_mask, bool projected, int64_t heads,
                    bool separate, bool channel_first, bool zeros_for_masked, bool training,
                    bool learns, bool finishes, std::string_view metric, std::string_view estimator,
                    std::optional<int64_t> topk, std::optional<double> temperature,
                    double gradient_temperature, double variance, double sync_update_v,
                    double commitment_weight, bool commitment_use_cross_entropy_loss,
                    bool pulls_codes, double diversity_weight, double diversity_temperature,
                    double orthogonal_weight, bool orthogonal_active_codes_only,
                    std::optional<int64_t> orthogonal_max_codes, double decay, double eps,
                    bool ema_update, bool manual_ema_update, bool by_gradient, double threshold,
                    double threshold_fraction, double reset_cluster_size, bool vqp_compat,
                    std::string_view reduction, std::string_view signature,
                    std::string_view group_name, std::string_view label, int64_t sync_every) {
  VectorQuantizeStepOptions options;
  options.learns(learns).finishes(finishes);
  options.search() = quantize_options(metric, estimator, temperature, gradient_temperature,
                                      variance, sync_update_v)
                         .topk(topk);
  options.layout()
      .heads(heads)
      .separate(separate)
      .channel_first(channel_first)
      .zeros_for_masked(zeros_for_masked);
  options.losses() =
      search_loss_options(training, metric, commitment_weight, commitment_use_cross_entropy_loss,
                          pulls_codes, diversity_weight, diversity_temperature);
  if (vqp_compat) {
    options.losses().vqp_compat(
        TokensBefore{tokens.value_or(at::Tensor()), token_mask, heads, separate, projected});
  }
  options.losses()
      .orthogonal_weight(orthogonal_weight)
      .orthogonal_active_codes_only(orthogonal_active_codes_only)
      .orthogonal_max_codes(orthogonal_max_codes);
  options.learning() = codebook_options(eps, metric, ranks_named(group_name, label, reduction));
  averages(options.learning(), decay, ema_update, manual_ema_update, by_gradient, signature);
  dead_codes(options.learning(), threshold, threshold_fraction, reset_cluster_size, vqp_compat);
  options.learning().sync_every(sync_every);
  const auto own = states_of("vector_quantize_", state, rng)[0];
  auto step = vector_quantize_(x, own, {codebook, mask, targets, weight, affine.vec(), step_counts},
                               options, totals.empty() ? std::nullopt : std::optional(totals[0]));
  std::vector<at::Tensor> shared;
  if (step.totals) shared.push_back(*step.totals);
  auto& [commitment, diversity, orthogonal] = step.terms;
  auto& searched = step.searched;
  return {std::move(step.quantized),  std::move(step.indices),     std::move(step.loss),
          std::move(commitment),      std::move(diversity),        std::move(orthogonal),
          std::move(searched.inputs), std::move(searched.indices), std::move(shared)};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "vector_quantize_(Tensor x, Tensor codebook, Tensor(a!)[] state, Tensor(b!) rng, "
      "Tensor(c!) step_counts, *, Tensor? mask=None, Tensor? targets=None, Tensor? weight=None, "
      "Tensor[] affine, Tensor[] totals, Tensor? tokens=None, Tensor? token_mask=None, "
      "bool projected=False, int heads=1, bool separate=False, bool channel_first=False, "
      "bool zeros_for_masked=True, bool training=False, "
      "bool learns=False, bool finishes=False, str metric='euclidean', str estimator='none', "
      "int? topk=None, float? temperature=None, float gradient_temperature=1., "
      "float variance=0.005, float sync_update_v=0., float commitment_weight=1., "
      "bool commitment_use_cross_entropy_loss=False, bool pulls_codes=False, "
      "float diversity_weight=0., float diversity_temperature=100., float orthogonal_weight=0., "
      "bool orthogonal_active_codes_only=False, int? orthogonal_max_codes=None, "
      "float decay=0.8, float eps=1e-5, bool ema_update=True, bool manual_ema_update=False, "
      "bool by_gradient=False, float threshold=0., float threshold_fraction=0., "
      "float reset_cluster_size=0., bool vqp_compat=False, str reduction='exact', "
      "str signature='', str group_name='', str label='quantizer', int sync_every=1) "
      "-> (Tensor quantized, Tensor indices, Tensor loss, Tensor commitment, Tensor diversity, "
      "Tensor orthogonal, Tensor inputs, Tensor chosen, Tensor[] totals)",
      torchvq::functional::step_op);
  m.def(
      "finish_step_(Tensor(a!)[] step_counts, Tensor[] indices, Tensor(b!)[] rng, *, "
      "Tensor[] counts, Tensor[] masks, bool alone=True, Tensor? depth=None) -> ()",
      torchvq::functional::finish_step_);
}
