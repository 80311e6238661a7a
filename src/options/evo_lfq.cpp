#include <torchvq/options/evo_lfq.h>

#include <c10/util/Exception.h>

namespace torchvq {
namespace {

template <typename T>
void expect(bool holds, const char* name, const char* condition, const T& value) {
  TORCH_CHECK_VALUE(holds, "EvoLFQOptions: expected ", name, " to be ", condition, ", but got ",
                    value);
}

}  // namespace

void EvoLFQOptions::validate() const {
  lfq().validate();
  expect(elitism_count() >= 0, "elitism_count", "0 or more", elitism_count());
  expect(pop_size() > elitism_count(), "pop_size", "above elitism_count", pop_size());
  expect(mutation_rate() >= 0 && mutation_rate() <= 1, "mutation_rate", "in [0, 1]",
         mutation_rate());
  expect(tournament_size() >= 1, "tournament_size", "at least 1", tournament_size());
  expect(generations() >= 0, "generations", "0 or more", generations());
}

}  // namespace torchvq
