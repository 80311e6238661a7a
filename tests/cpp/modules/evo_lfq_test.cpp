// EvoLFQ in C++.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <torchvq/modules/evo_lfq.h>
#include <torchvq/modules/state_dict.h>

#include "expect_throw.h"

namespace torchvq::evo_lfq_test {
namespace {

using torchvq::testing::expect_throw_with;

EvoLFQOptions options() {
  return EvoLFQOptions(LFQOptions().dim(8).codebook_size(16).num_codebooks(2).spherical(true))
      .pop_size(40)
      .mutation_rate(0.01);
}

EvoLFQ build(const EvoLFQOptions& own = options()) {
  torch::manual_seed(1);
  return EvoLFQ(torch::nn::AnyModule(torch::nn::Linear(6, 8)),
                torch::nn::AnyModule(torch::nn::Linear(8, 6)), own);
}

torch::Tensor ones(const torch::Tensor& /*decoded*/, const torch::Tensor& bits) {
  return bits.flatten(1).gt(0).sum(-1).to(at::kFloat);
}

TEST(EvoLFQTest, BitsOfDataDecodeToItsReconstruction) {
  auto evo = build();
  const auto x = torch::randn({2, 5, 6});
  const auto bits = evo->encode(x), signs = evo->encode(x, /*return_signs=*/true);
  EXPECT_EQ(bits.sizes(), (std::vector<int64_t>{2, 5, 8}));
  EXPECT_TRUE(at::equal(bits * 2 - 1, signs));
  EXPECT_TRUE(evo->is_training() && evo->lfq->is_training());
  const auto right = evo(x).reconstructed;
  EXPECT_TRUE(at::allclose(evo->decode_bits(bits), right, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(evo->decode_bits(signs), right, 1e-5, 1e-6));
}

TEST(EvoLFQTest, ModulesOfAFrozenPartStayFrozen) {
  auto evo = build();
  evo->decoder.ptr()->eval();
  evo->encode(torch::randn({2, 6}));
  EXPECT_TRUE(evo->is_training() && evo->encoder.ptr()->is_training());
  EXPECT_FALSE(evo->decoder.ptr()->is_training());
}

TEST(EvoLFQTest, EvolutionFindsAllOnes) {
  auto evo = build();
  double last = -1;
  int told = 0;
  const auto found = evo->evolve(
      ones, EvoLFQEvolveOptions().shape({{3, 8}}).generations(60).return_best_decoded(true),
      [&](const EvoLFQGeneration& generation) {
        EXPECT_GE(generation.best_fitness, last);
        last = generation.best_fitness;
        ++told;
        return true;
      });
  EXPECT_EQ(told, 60);
  EXPECT_EQ(found.best_fitness, 24);
  EXPECT_TRUE(found.best_gene.eq(1).all().item<bool>());
  EXPECT_EQ(found.pop_bits.sizes(), (std::vector<int64_t>{40, 3, 8}));
  EXPECT_FALSE(found.best_decoded.requires_grad());
}

TEST(EvoLFQTest, ASearchStopsWhenToldAndResumesFromItsState) {
  auto first = build(), second = build();
  const auto population = first->init_random_population();
  load_state_dict(*second, state_dict(*first));
  EXPECT_TRUE(at::equal(first->step(population, ones).first, second->step(population, ones).first));
  EXPECT_FALSE(at::equal(first->mutate(population, 0.5), first->mutate(population, 0.5)));
  int told = 0;
  first->evolve(ones, EvoLFQEvolveOptions().pop_bits(population),
                [&](const EvoLFQGeneration&) { return ++told < 3; });
  EXPECT_EQ(told, 3);
}

TEST(EvoLFQTest, TheBestGeneIsACopy) {
  auto evo = build();
  auto population = torch::zeros({4, 8});
  population[0].fill_(1);
  const auto found =
      evo->evolve(ones, EvoLFQEvolveOptions().pop_bits(population).generations(1), nullptr);
  population.zero_();
  EXPECT_TRUE(found.best_gene.eq(1).all().item<bool>());
}

TEST(EvoLFQTest, NaNIsLeastFit) {
  auto evo = build();
  const auto population = torch::arange(4.0).unsqueeze(1);
  const auto fitnesses = torch::tensor({0.0F, std::nanf(""), 5.0F, 1.0F});
  EXPECT_TRUE(evo->tournament_selection(population, fitnesses, 64).eq(2).all().item<bool>());
}

TEST(EvoLFQTest, CopiesGoOnAlike) {
  auto evo = build();
  const auto copy = std::dynamic_pointer_cast<EvoLFQImpl>(evo->clone());
  const auto population = evo->init_random_population();
  copy->init_random_population();
  EXPECT_TRUE(at::equal(evo->step(population, ones).first, copy->step(population, ones).first));
}

TEST(EvoLFQTest, StateHasTheNamesOfPython) {
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*build())) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"decoder.bias", "decoder.weight", "encoder.bias",
                                             "encoder.weight", "lfq.mask", "rng"}));
}

TEST(EvoLFQTest, OptionsAndArgumentsAreChecked) {
  EXPECT_THROW(build(options().pop_size(1)), c10::ValueError);
  EXPECT_THROW(build(options().elitism_count(-1)), c10::ValueError);
  EXPECT_THROW(build(options().mutation_rate(1.5)), c10::ValueError);
  EXPECT_THROW(build(options().tournament_size(0)), c10::ValueError);
  EXPECT_THROW(build(options().generations(-1)), c10::ValueError);
  const torch::nn::AnyModule none, layer(torch::nn::Linear(8, 8));
  expect_throw_with<c10::ValueError>([&] { EvoLFQ(none, layer, options()); }, "expected encoder");
  expect_throw_with<c10::ValueError>([&] { EvoLFQ(layer, none, options()); }, "expected decoder");
  auto evo = build();
  EXPECT_THROW(evo->decode_bits(torch::zeros({2, 7})), c10::ValueError);
  EXPECT_THROW(evo->evolve(ones, {}), c10::ValueError);
  const auto population = evo->init_random_population();
  EXPECT_THROW(evo->mutate(population, 2.0), c10::ValueError);
  expect_throw_with<c10::TypeError>([&] { evo->mutate({}); }, "expected bits to be a tensor");
  EXPECT_THROW(evo->step(population, ones, EvoLFQStepOptions().elitism_count(40)), c10::ValueError);
  const auto scalar = [](const auto& decoded, const auto& /*bits*/) {
    return decoded.sum().view(1);
  };
  EXPECT_THROW(evo->step(population, scalar), c10::ValueError);
}

}  // namespace
}  // namespace torchvq::evo_lfq_test
