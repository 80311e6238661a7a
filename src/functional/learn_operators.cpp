// The operators of learn_codebooks.h. A codebook's state is a list of four tensors:
// embed, cluster_size, embed_avg, replaced; with sync_every above 1, five
// more hold kept statistics.
#include <string_view>
#include <tuple>

#include <torch/library.h>

#include <torchvq/functional/learn_codebooks.h>

#include "functional/operator_options.h"
#include "functional/step_tokens.h"

namespace torchvq::functional {
namespace {

using TensorLists =
    std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>;

TensorLists collect_op(at::TensorList state, at::TensorList rng, at::TensorList x,
                       at::TensorList indices, at::TensorList mask, double eps,
                       std::string_view metric, std::string_view reduction,
                       std::string_view signature, std::string_view group_name,
                       std::string_view label) {
  const auto options = codebook_options(eps, metric, ranks_named(group_name, label, reduction))
                           .signature(std::string(signature));
  TensorLists found;
  auto& [counts, sums, exponents] = found;
  const auto states = states_of("learn_codebooks_", state, rng);
  const auto tokens = step_tokens("learn_codebooks_", x, indices, mask, states.size());
  for (auto& own : collect_statistics(states, tokens, options)) {
    counts.push_back(std::move(own.counts));
    sums.push_back(std::move(own.sums));
    exponents.push_back(std::move(own.exponents));
  }
  return found;
}

std::vector<CodeStatistics> statistics_of(at::TensorList given, size_t levels) {
  TORCH_CHECK_VALUE(given.size() == 3 * levels,
                    "learn_codebooks_: expected statistics to hold 3 tensors for each of ", levels,
                    " levels, but got ", given.size());
  std::vector<CodeStatistics> statistics;
  for (size_t i = 0; i < levels; ++i) {
    statistics.push_back({given[3 * i], given[3 * i + 1], given[3 * i + 2]});
  }
  return statistics;
}

std::vector<at::Tensor> learn_op(at::TensorList state, at::TensorList rng, at::TensorList x,
                                 at::TensorList indices, at::TensorList mask,
                                 at::TensorList statistics, const std::optional<at::Tensor>& weight,
                                 double decay, double eps, std::string_view metric, bool ema_update,
                                 bool manual_ema_update, bool by_gradient, double threshold,
                                 double threshold_fraction, double reset_cluster_size,
                                 bool vqp_compat, std::string_view reduction,
                                 std::string_view signature, std::string_view group_name,
                                 std::string_view label, int64_t sync_every) {
  auto options = codebook_options(eps, metric, ranks_named(group_name, label, reduction));
  averages(options, decay, ema_update, manual_ema_update, by_gradient, signature);
  dead_codes(options, threshold, threshold_fraction, reset_cluster_size, vqp_compat);
  options.sync_every(sync_every);
  const auto states = states_of("learn_codebooks_", state, rng);
  const auto tokens = step_tokens("learn_codebooks_", x, indices, mask, states.size());
  if (statistics.empty()) return learn_codebooks_(states, tokens, options, weight);
  learn_from_statistics_(states, tokens, statistics_of(statistics, tokens.size()), options, weight);
  return {};
}

void expire_op(at::TensorList state, at::TensorList rng, at::TensorList x, double eps,
               std::string_view metric, double threshold, double threshold_fraction,
               double reset_cluster_size, bool vqp_compat, std::string_view group_name,
               std::string_view label) {
  auto options = codebook_options(eps, metric, ranks_named(group_name, label));
  dead_codes(options, threshold, threshold_fraction, reset_cluster_size, vqp_compat);
  const auto states = states_of("expire_codes_", state, rng);
  TORCH_CHECK_VALUE(x.size() == states.size(), "expire_codes_: expected x to hold ", states.size(),
                    " tensors (those of the codebooks), but got ", x.size());
  expire_codes_(states, x, options);
}

}  // namespace
}  // namespace torchvq::functional

// The states of several codebooks are passed as one list; levels without tokens are not in use.
TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "collect_statistics(Tensor[] state, Tensor[] rng, Tensor[] x, Tensor[] indices, *, "
      "Tensor[] mask, float eps=1e-5, str metric='euclidean', str reduction='exact', "
      "str signature='', str group_name='', str label='quantizer') "
      "-> (Tensor[] counts, Tensor[] sums, Tensor[] exponents)",
      torchvq::functional::collect_op);
  m.def(
      "learn_codebooks_(Tensor(a!)[] state, Tensor[] rng, Tensor[] x, Tensor[] indices, *, "
      "Tensor[] mask, Tensor[] statistics, Tensor? weight=None, float decay=0.8, "
      "float eps=1e-5, str metric='euclidean', bool ema_update=True, "
      "bool manual_ema_update=False, bool by_gradient=False, float threshold=0., "
      "float threshold_fraction=0., float reset_cluster_size=0., bool vqp_compat=False, "
      "str reduction='exact', str signature='', str group_name='', str label='quantizer', "
      "int sync_every=1) -> Tensor[] counts",
      torchvq::functional::learn_op);
  m.def(
      "expire_codes_(Tensor(a!)[] state, Tensor[] rng, Tensor[] x, *, float eps=1e-5, "
      "str metric='euclidean', float threshold=0., float threshold_fraction=0., "
      "float reset_cluster_size=0., bool vqp_compat=False, str group_name='', "
      "str label='quantizer') -> ()",
      torchvq::functional::expire_op);
}
