#include <torchvq/functional/evolution.h>

#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/sign_quantize.h>

#include "detail/checks.h"

namespace torchvq::functional {

namespace {

// Sizes are symbolic throughout, so that one compiled graph serves populations of any size.
at::Tensor uniform(const at::Tensor& rng, c10::SymIntArrayRef size) {
  return ops::random_numbers(rng, RandomPurpose::kEvolution, Distribution::kUniform, size);
}

/// Uniform numbers lie strictly inside (0, 1), so rates 0 and 1 mean never and always.
at::Tensor flips(const at::Tensor& rng, const at::Tensor& bits, double rate) {
  return uniform(rng, bits.sym_sizes()).lt(rate).to(bits.device());
}

at::Tensor comparable(const char* op, const at::Tensor& fitnesses) {
  TORCH_CHECK_TYPE(!fitnesses.is_complex(), op, ": expected fitnesses to be real, but got ",
                   fitnesses.scalar_type());
  if (fitnesses.scalar_type() == at::kBool) return fitnesses.to(at::kByte);  // argmax takes no bool
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return fitnesses.nan_to_num(-infinity, infinity, -infinity);
}

at::Tensor as_bits(const at::Tensor& set, bool is_sign) {
  const auto bits = set.to(at::kFloat);
  return is_sign ? bits * 2 - 1 : bits;
}

}  // namespace

at::Tensor indices_to_bits(const at::Tensor& indices, int64_t num_bits, bool is_sign) {
  return as_bits(ops::sign_decode(indices, num_bits).flatten(-2).gt(0), is_sign);
}

at::Tensor bits_to_indices(const at::Tensor& bits, int64_t num_bits) {
  TORCH_CHECK_VALUE(num_bits >= 1 && bits.dim() >= 1 && bits.sym_size(-1) % num_bits == 0,
                    "bits_to_indices: expected bits to be a multiple of ", num_bits,
                    " features, but got shape ", bits.sym_sizes());
  return ops::sign_quantize(bits.to(at::kFloat).unflatten(-1, {-1, num_bits})).second;
}

at::Tensor random_bits(const at::Tensor& rng, at::IntArrayRef size, bool is_sign) {
  return as_bits(uniform(rng, c10::fromIntArrayRefSlow(size)).lt(0.5), is_sign);
}

at::Tensor mutate_bits(const at::Tensor& bits, const at::Tensor& rng, double rate, bool is_sign) {
  detail::check_defined("mutate_bits", "bits", bits);
  TORCH_CHECK_TYPE(bits.scalar_type() != at::kBool,
                   "mutate_bits: expected bits to be numbers, but got Bool");
  TORCH_CHECK_VALUE(rate >= 0 && rate <= 1, "mutate_bits: expected rate to be in [0, 1], but got ",
                    rate);
  return at::where(flips(rng, bits, rate), is_sign ? -bits : 1 - bits, bits);
}

at::Tensor grow_population(const at::Tensor& bits, const at::Tensor& rng, int64_t size, double rate,
                           bool is_sign) {
  TORCH_CHECK_VALUE(bits.dim() >= 1 && bits.sym_size(0) > 0,
                    "grow_population: expected bits to be a batch of at least 1, but got shape ",
                    bits.sym_sizes());
  TORCH_CHECK_VALUE(size >= 0, "grow_population: expected size to be at least 0, but got ", size);
  const auto rows = at::arange(size, bits.options().dtype(at::kLong));
  const auto copies = bits.index_select(0, rows.remainder(at::Scalar(bits.sym_size(0))));
  return mutate_bits(copies, rng, rate, is_sign);
}

at::Tensor cross_bits(const at::Tensor& first, const at::Tensor& second, const at::Tensor& rng) {
  TORCH_CHECK_VALUE(first.sym_sizes() == second.sym_sizes(),
                    "cross_bits: expected parents to be of one shape, but got ", first.sym_sizes(),
                    " and ", second.sym_sizes());
  return at::where(flips(rng, first, 0.5), first, second);
}

at::Tensor fittest_first(const at::Tensor& fitnesses) {
  detail::check_rank("fittest_first", "fitnesses", fitnesses, 1, "(P,)");
  return comparable("fittest_first", fitnesses)
      .argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
}

at::Tensor select_parents(const at::Tensor& population, const at::Tensor& fitnesses,
                          const at::Tensor& rng, int64_t tournament_size) {
  constexpr auto op = "select_parents";
  detail::check_rank(op, "fitnesses", fitnesses, 1, "(P,)");
  TORCH_CHECK_VALUE(population.dim() >= 1 && population.sym_size(0) == fitnesses.sym_size(0), op,
                    ": expected population to be one row per fitness, but got shapes ",
                    population.sym_sizes(), " and ", fitnesses.sym_sizes());
  TORCH_CHECK_VALUE(tournament_size >= 1, op,
                    ": expected tournament_size to be at least 1, but got ", tournament_size);
  const auto count = population.sym_size(0);
  const auto drawn = (uniform(rng, {count, tournament_size}) * at::Scalar(count))
                         .to(at::kLong)
                         .to(fitnesses.device());
  const auto best = comparable(op, fitnesses).index({drawn}).argmax(1, /*keepdim=*/true);
  const auto winners = drawn.gather(1, best).squeeze(1);
  return population.index_select(0, winners.to(population.device()));
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def("indices_to_bits(Tensor indices, int num_bits, *, bool is_sign=False) -> Tensor",
        TORCH_FN(indices_to_bits));
  m.def("bits_to_indices(Tensor bits, int num_bits) -> Tensor", TORCH_FN(bits_to_indices));
  m.def("random_bits(Tensor rng, int[] size, *, bool is_sign=False) -> Tensor",
        TORCH_FN(random_bits));
  m.def("mutate_bits(Tensor bits, Tensor rng, float rate, *, bool is_sign=False) -> Tensor",
        TORCH_FN(mutate_bits));
  m.def(
      "grow_population(Tensor bits, Tensor rng, int size, float rate, *, bool is_sign=False) -> "
      "Tensor",
      TORCH_FN(grow_population));
  m.def("cross_bits(Tensor first, Tensor second, Tensor rng) -> Tensor", TORCH_FN(cross_bits));
  m.def("fittest_first(Tensor fitnesses) -> Tensor", TORCH_FN(fittest_first));
  m.def(
      "select_parents(Tensor population, Tensor fitnesses, Tensor rng, int tournament_size) -> "
      "Tensor",
      TORCH_FN(select_parents));
}
