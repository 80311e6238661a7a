#include <torchvq/options/evo_lfq.h>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_evo_lfq{"EvoLFQ"};

}  // namespace

void EvoLFQOptions::validate() const {
  lfq().validate();
  expect_evo_lfq(elitism_count() >= 0, "elitism_count", "0 or more", elitism_count());
  expect_evo_lfq(pop_size() > elitism_count(), "pop_size", "above elitism_count", pop_size());
  expect_evo_lfq(mutation_rate() >= 0 && mutation_rate() <= 1, "mutation_rate", "in [0, 1]",
                 mutation_rate());
  expect_evo_lfq(tournament_size() >= 1, "tournament_size", "at least 1", tournament_size());
  expect_evo_lfq(generations() >= 0, "generations", "0 or more", generations());
}

template <>
const detail::OptionTable<EvoLFQOptions>& detail::option_table() {
  static const OptionRows<EvoLFQOptions> own{
      TORCHVQ_OPTION(pop_size),      TORCHVQ_OPTION(mutation_rate), TORCHVQ_OPTION(tournament_size),
      TORCHVQ_OPTION(elitism_count), TORCHVQ_OPTION(generations),
  };
  static const OptionTable<EvoLFQOptions> table{
      .owner = "EvoLFQ",
      .defaults = EvoLFQOptions(LFQOptions()),
      .required = {},
      .rows = with_part(own, option_table<LFQOptions>().rows,
                        [](auto& options) -> auto& { return options.lfq(); })};
  return table;
}

}  // namespace torchvq
