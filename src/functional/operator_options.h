// Converts the flat arguments of operators to the options of the functions that implement them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::functional {

inline distributed::Ranks ranks_named(std::string_view group_name, std::string_view label,
                                      std::string_view reduction = "exact") {
  distributed::Ranks ranks;
  ranks.group_name = group_name;
  ranks.label = label;
  ranks.reduction = reduction;
  return ranks;
}

/// Throws c10::ValueError unless a list has one value for each level, or `or_none`.
inline void check_one_per_level(const char* op, const char* name, size_t given, size_t levels,
                                bool or_none = false) {
  TORCH_CHECK_VALUE(given == levels || (or_none && given == 0), op, ": expected ", name, " to be ",
                    or_none ? "empty or " : "", "one for each of ", levels, " levels, but got ",
                    given);
}

/// Options of all operators that read or write codebooks.
inline LearnCodebooksOptions codebook_options(double eps, std::string_view metric,
                                              distributed::Ranks ranks) {
  return LearnCodebooksOptions().eps(eps).metric(std::string(metric)).ranks(std::move(ranks));
}

/// Sets which dead codes are replaced, and how.
inline LearnCodebooksOptions& dead_codes(LearnCodebooksOptions& options, double threshold,
                                         double threshold_fraction, double reset_cluster_size,
                                         bool vqp_compat) {
  return options.threshold(threshold)
      .threshold_fraction(threshold_fraction)
      .reset_cluster_size(reset_cluster_size)
      .vqp_compat(vqp_compat);
}

/// Sets how the moving averages are updated.
inline LearnCodebooksOptions& averages(LearnCodebooksOptions& options, double decay,
                                       bool ema_update, bool manual_ema_update, bool by_gradient,
                                       std::string_view signature) {
  return options.decay(decay)
      .ema_update(ema_update)
      .manual_ema_update(manual_ema_update)
      .by_gradient(by_gradient)
      .signature(std::string(signature));
}

/// Splits a list into the states of codebooks: embed, cluster_size, embed_avg and replaced
/// of each, followed by the tensors kept between steps, if any.
inline std::vector<CodebookState> states_of(const char* op, at::TensorList state,
                                            at::TensorList rng) {
  constexpr size_t kTensors = 4, kWithKept = 9;
  const size_t each = state.size() == kWithKept * rng.size() ? kWithKept : kTensors;
  TORCH_CHECK_VALUE(state.size() == each * rng.size() && !rng.empty(), op,
                    ": expected state to hold ", kTensors, " or ", kWithKept,
                    " tensors for each of ", rng.size(), " generators, but got ", state.size());
  std::vector<CodebookState> states;
  for (size_t i = 0; i < rng.size(); ++i) {
    const auto own = state.slice(i * each, each);
    states.push_back({own[0], own[1], own[2], own[3], rng[i], own.slice(kTensors).vec()});
  }
  return states;
}

/// Options for the choice of codes and the gradient of the output.
inline QuantizeOptions quantize_options(std::string_view metric, std::string_view estimator,
                                        std::optional<double> temperature,
                                        double gradient_temperature, double variance,
                                        double sync_update_v) {
  return QuantizeOptions()
      .metric(std::string(metric))
      .estimator(std::string(estimator))
      .temperature(temperature)
      .gradient_temperature(gradient_temperature)
      .variance(variance)
      .sync_update_v(sync_update_v);
}

/// Options of the losses that depend on the searched codes.
inline QuantizerLossOptions search_loss_options(bool training, std::string_view metric,
                                                double commitment_weight,
                                                bool commitment_use_cross_entropy_loss,
                                                bool pulls_codes, double diversity_weight,
                                                double diversity_temperature) {
  return QuantizerLossOptions()
      .training(training)
      .metric(std::string(metric))
      .commitment_weight(commitment_weight)
      .commitment_use_cross_entropy_loss(commitment_use_cross_entropy_loss)
      .pulls_codes(pulls_codes)
      .diversity_weight(diversity_weight)
      .diversity_temperature(diversity_temperature);
}

}  // namespace torchvq::functional
