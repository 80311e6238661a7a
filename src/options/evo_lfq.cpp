#include <torchvq/options/evo_lfq.h>

#include <c10/util/Exception.h>

#include "options/expect.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_evo_lfq{"EvoLFQOptions"};

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

}  // namespace torchvq
