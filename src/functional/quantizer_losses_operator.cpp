// The operators of quantizer_losses.h, which levels of a stack call individually.
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/library.h>

#include <torchvq/functional/quantizer_losses.h>

#include "functional/operator_options.h"

namespace torchvq::functional {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor> losses_op(
    const at::Tensor& inputs, const at::Tensor& codebook, const at::Tensor& codes,
    const at::Tensor& indices, const OptionalTensor& mask, const OptionalTensor& targets,
    const OptionalTensor& totals, const OptionalTensor& tokens, const OptionalTensor& token_mask,
    int64_t heads, bool separate, bool projected, bool training, std::string_view metric,
    double commitment_weight, bool commitment_use_cross_entropy_loss, bool pulls_codes,
    double diversity_weight, double diversity_temperature) {
  auto options =
      search_loss_options(training, metric, commitment_weight, commitment_use_cross_entropy_loss,
                          pulls_codes, diversity_weight, diversity_temperature);
  if (tokens) options.vqp_compat(TokensBefore{*tokens, token_mask, heads, separate, projected});
  auto losses = search_losses({inputs, codebook, mask, codes, indices}, targets, totals, options);
  return {std::move(losses.commitment), std::move(losses.diversity)};
}

std::vector<at::Tensor> totals_op(at::TensorList codebooks, at::TensorList inputs,
                                  at::TensorList searched, at::TensorList masks,
                                  at::ArrayRef<double> temperatures, std::string_view metric,
                                  std::string_view group_name, std::string_view label) {
  TORCH_CHECK_VALUE(
      inputs.size() == searched.size() && !inputs.empty() && inputs.size() <= codebooks.size() &&
          (masks.empty() || masks.size() == inputs.size()) && temperatures.size() == inputs.size(),
      "shared_diversity_totals: expected inputs, searched, temperatures, and masks where there are "
      "any, for each of at most ",
      codebooks.size(), " levels, but got ", inputs.size(), ", ", searched.size(), ", ",
      temperatures.size(), " and ", masks.size());
  std::vector<SearchedTokens> levels;
  std::vector<QuantizerLossOptions> options;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto mask = masks.empty() ? std::nullopt : std::optional(masks[i]);
    levels.push_back({inputs[i], searched[i], mask, {}, {}});
    options.push_back(QuantizerLossOptions()
                          .training(true)
                          .metric(std::string(metric))
                          .diversity_weight(1)
                          .diversity_temperature(temperatures[i]));
  }
  std::vector<at::Tensor> totals;
  for (auto& own : shared_totals(codebooks, levels, options, ranks_named(group_name, label))) {
    if (own) totals.push_back(std::move(*own));
  }
  return totals;
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "search_losses(Tensor inputs, Tensor codebook, Tensor codes, Tensor indices, *, "
      "Tensor? mask=None, Tensor? targets=None, Tensor? totals=None, Tensor? tokens=None, "
      "Tensor? token_mask=None, int heads=1, bool separate=False, bool projected=False, "
      "bool training=False, str metric='euclidean', float commitment_weight=1., "
      "bool commitment_use_cross_entropy_loss=False, bool pulls_codes=False, "
      "float diversity_weight=0., float diversity_temperature=100.) "
      "-> (Tensor commitment, Tensor diversity)",
      torchvq::functional::losses_op);
  m.def(
      "shared_diversity_totals(Tensor[] codebooks, Tensor[] inputs, Tensor[] searched, *, "
      "Tensor[] masks, float[] temperatures, str metric='euclidean', str group_name='', "
      "str label='quantizer') -> Tensor[]",
      torchvq::functional::totals_op);
}
