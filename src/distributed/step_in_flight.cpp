#include "distributed/step_in_flight.h"

#include <utility>

#include "distributed/offered_candidates.h"

namespace torchvq::distributed {
namespace {

StepMessage checked(StepMessage message) {
  const auto& options = message.options;
  check_synced_code_statistics(message.x, message.indices, message.exponents, options.mask,
                               options.state, options.rng, options.reduction);
  return message;
}

StatisticsArguments arguments_of(const StepMessage& message) {
  const auto& options = message.options;
  return {message.x,     message.indices, message.exponents, options.mask,
          options.state, options.rng,     options.signature, options.reduction};
}

}  // namespace

StepInFlight::StepInFlight(StepMessage message)
    : message_(checked(std::move(message))),
      group_(message_.options.group_name, {message_.options.label, message_.options.rng}),
      statistics_(group_, arguments_of(message_), offer()) {}

at::Tensor StepInFlight::offer() const {
  const auto& options = message_.options;
  if (message_.rng.empty() || group_.alone()) return options.rng.new_empty({0});
  return own_offer(
      {message_.x, message_.exponents, options.mask, message_.rng, message_.cluster_size,
       message_.kept, message_.dead.threshold, message_.dead.threshold_fraction,
       message_.dead.metric == "cosine", options.reduction == "exact"},
      group_);
}

StepStatistics StepInFlight::receive() {
  at::Tensor offered;
  auto [counts, sums, used] = statistics_.receive(offered);
  StepStatistics found{{std::move(counts), std::move(sums), std::move(used)}, {}};
  if (!message_.rng.empty()) found.offered = std::move(offered);
  return found;
}

}  // namespace torchvq::distributed
