// Joint refinement of C++ modules; tests/python/test_refine.py compares the numbers with Python's.
#include <gtest/gtest.h>

#include <torchvq/modules/refine.h>

#include "expect_throw.h"
#include "modules/residual_vq_support.h"

namespace torchvq::testing::refine_test {
namespace {

using functional::RefineCodebooksOptions;

torch::Tensor tokens(int64_t count = 600) { return normal({1, count, kDim}, 77); }

double error_of(ResidualVQ& stack, const torch::Tensor& x, int64_t beam) {
  stack->eval();
  const auto found = stack(x, StackCall().beam_size(beam)).quantized;
  return (found - x).to(torch::kDouble).square().mean().item<double>();
}

TEST(RefineTest, TheErrorFallsAsItSays) {
  auto stack = make_stack(stack_options());
  const auto x = tokens();
  const auto before = error_of(stack, x, 4);
  const auto found = refine(stack, x, std::nullopt, RefineCodebooksOptions().beam(4));
  EXPECT_NEAR(found.error_before, before, 1e-6 * before);
  EXPECT_NEAR(found.error_after, error_of(stack, x, 4), 1e-6 * before);
  EXPECT_LT(found.error_after, 0.9 * before);
  EXPECT_GT(found.iterations, 0);
}

TEST(RefineTest, AveragesStandBehindTheCodes) {
  auto stack = make_stack(stack_options());
  refine(stack, tokens());
  auto codebook = stack->levels[1]->codebook_state;
  const auto codes = codebook->embed.clone();
  codebook->update_ema();
  EXPECT_TRUE(torch::allclose(codebook->embed, codes, 1e-6, 1e-7));
}

TEST(RefineTest, GroupsAreRefinedEachByItself) {
  GroupedResidualVQOptions options(2 * kDim);
  options.groups(2).rvq() = stack_options().dim(kDim);
  GroupedResidualVQ grouped(options);
  const auto x = torch::cat({tokens(), 3 * tokens().flip(1)}, 2);
  const auto found = refine(grouped, x);
  EXPECT_LT(found.error_after, found.error_before);
  for (size_t group = 0; group < 2; ++group) {
    auto& own = grouped->rvqs[group];
    EXPECT_NE(own->levels[0]->codebook_state->embed.std().item<float>(), 0);
  }
}

TEST(RefineTest, RefusesWhatItCannotRefine) {
  const auto message = [](const char* what) {
    return std::string("refine: expected module to have no ") + what;
  };
  const auto refuses = [&](const StackOptions& options, const char* what) {
    auto stack = ResidualVQ(options);
    expect_throw_with<c10::ValueError>([&] { refine(stack, tokens()); }, message(what));
  };
  refuses(with([](auto& o) { o.vq().use_cosine_sim(true); }), "cosine codebooks");
  refuses(with([](auto& o) { o.vq().affine_param(true); }), "affine map of the codes");
  refuses(with([](auto& o) { o.implicit_neural_codebook(true); }), "implicit neural codebooks");
  refuses(with([](auto& o) { o.vq().kmeans_init(true); }), "codes that are not set");
  auto stack = make_stack(stack_options());
  expect_throw_with<c10::ValueError>([&] { refine(stack, tokens(kCodes - 1)); },
                                     "at least 16 finite vectors");
  expect_throw_with<c10::ValueError>(
      [&] { refine(stack, tokens(), std::nullopt, RefineCodebooksOptions().ridge(-1)); },
      "refine: expected ridge to be finite and positive, but got -1");
}

}  // namespace
}  // namespace torchvq::testing::refine_test
