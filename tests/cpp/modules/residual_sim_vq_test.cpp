// ResidualSimVQ in C++.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/residual_sim_vq.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::residual_sim_vq_test {
namespace {

ResidualSimVQOptions options() { return ResidualSimVQOptions(6, 3, 11); }

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes);
}

TEST(ResidualSimVQTest, LevelsQuantizeWhatIsLeft) {
  ResidualSimVQ stack(options());
  stack->eval();
  const auto x = normal({2, 5, 6});
  const auto output = stack(x);
  auto residual = x, total = at::zeros_like(x);
  for (size_t level = 0; level < 3; ++level) {
    const auto own = stack->levels[level](residual);
    EXPECT_TRUE(at::equal(output.indices.select(-1, static_cast<int64_t>(level)), own.indices));
    EXPECT_TRUE(at::equal(output.loss[static_cast<int64_t>(level)], own.loss));
    residual = residual - own.quantized;
    total = total + own.quantized;
  }
  EXPECT_TRUE(at::equal(output.quantized, total));
  EXPECT_EQ(output.indices.sizes(), (std::vector<int64_t>{2, 5, 3}));
  EXPECT_EQ(stack->codebooks().sizes(), (std::vector<int64_t>{3, 11, 6}));
}

TEST(ResidualSimVQTest, EveryVariantDecodesItsIndices) {
  for (const auto& own : {options(), options().heads(2), options().channel_first(true),
                          options().heads(3).channel_first(true), options().eval_beam_size(4),
                          options().heads(2).eval_beam_size(3), options().quantize_dropout(true),
                          options().sim_vq(SimVQOptions(1, 1).frozen_codebook_dim(4))}) {
    ResidualSimVQ stack(own);
    stack->eval();
    const auto shape =
        own.channel_first() ? std::vector<int64_t>{2, 6, 3, 4} : std::vector<int64_t>{2, 5, 6};
    const auto output = stack(normal(shape), ResidualSimVQForwardOptions().return_all_codes(true));
    EXPECT_EQ(output.quantized.sizes(), shape);
    EXPECT_TRUE(at::equal(stack->get_output_from_indices(output.indices), output.quantized));
    EXPECT_TRUE(at::equal(stack->get_codes_from_indices(output.indices), output.all_codes));
  }
}

TEST(ResidualSimVQTest, ABeamLeavesNoMore) {
  const auto x = normal({4, 50, 6});
  double before = INFINITY;
  for (const int64_t beam : {1, 4, 16}) {
    torch::manual_seed(3);
    ResidualSimVQ stack(options().eval_beam_size(beam));
    stack->eval();
    const auto left = at::mse_loss(stack(x).quantized, x).item<double>();
    EXPECT_LE(left, before);
    before = left;
  }
}

TEST(ResidualSimVQTest, GainIsOneOrThatOfTheReference) {
  for (const bool compat : {false, true}) {
    ResidualSimVQ stack(
        options().rotation_trick(false).sim_vq(SimVQOptions(1, 1).vqp_compat(compat)));
    auto x = normal({2, 5, 6}).requires_grad_();
    stack(x).quantized.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), at::full_like(x, compat ? 3 : 1)));
  }
}

torch::Tensor gradient_of(ResidualSimVQ& stack) {
  auto x = normal({2, 5, 6}).requires_grad_();
  (stack(x).quantized * normal({2, 5, 6}).cos()).sum().backward();
  return x.grad();
}

TEST(ResidualSimVQTest, TheEstimatorThatIsSetLaterIsThatOfTheModuleBuiltWithIt) {
  for (const bool rotates : {false, true}) {
    for (const bool compat : {false, true}) {
      auto wanted = options().rotation_trick(rotates);
      wanted.sim_vq().vqp_compat(compat);
      ResidualSimVQ built(wanted);
      for (const bool before : {false, true}) {
        ResidualSimVQ changed(options().rotation_trick(before));
        load_state_dict(*changed, state_dict(*built));
        changed->options.rotation_trick(rotates).sim_vq().vqp_compat(compat);
        EXPECT_TRUE(at::equal(gradient_of(changed), gradient_of(built)));
      }
    }
  }
}

TEST(ResidualSimVQTest, MaskedIsAbsent) {
  for (const int64_t heads : {1, 2}) {
    ResidualSimVQ stack(options().heads(heads));
    auto x = normal({2, 3, 6});
    const auto mask = torch::tensor({{true, false, true}, {false, true, true}});
    x.index_put_({mask.logical_not()}, std::nan(""));
    const auto found = stack(x, ResidualSimVQForwardOptions().mask(mask));
    const auto right = stack(x.index({mask}).unsqueeze(0));
    EXPECT_TRUE(at::allclose(found.loss, right.loss));
    EXPECT_TRUE(at::equal(found.indices.index({mask}), right.indices[0]));
    EXPECT_TRUE(found.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
    EXPECT_TRUE(found.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
  }
}

TEST(ResidualSimVQTest, WithoutTokensThereIsNothingToQuantize) {
  for (const auto& own : {options(), options().heads(2), options().eval_beam_size(4),
                          options().heads(2).eval_beam_size(3)}) {
    for (const bool training : {false, true}) {
      ResidualSimVQ stack(own);
      stack->train(training);
      const auto output = stack(at::zeros({0, 5, 6}));
      EXPECT_EQ(output.quantized.sizes(), (std::vector<int64_t>{0, 5, 6}));
      EXPECT_EQ(output.indices.size(-1), 3);
      EXPECT_TRUE(at::equal(output.loss, at::zeros({3})));
    }
  }
}

TEST(ResidualSimVQTest, DroppedLevelsAreAbsent) {
  ResidualSimVQ stack(options().quantize_dropout(true));
  bool dropped = false;
  for (int step = 0; step < 10; ++step) {
    const auto output = stack(normal({1, 4, 6}));
    const auto absent = output.indices.lt(0).all(0).all(0);
    EXPECT_TRUE(at::equal(absent, output.loss.eq(0)));
    EXPECT_FALSE(absent[0].item<bool>());
    dropped = dropped || absent.any().item<bool>();
  }
  EXPECT_TRUE(dropped);
}

TEST(ResidualSimVQTest, StateHasTheNamesOfPython) {
  ResidualSimVQ stack(ResidualSimVQOptions(6, 2, 11).quantize_dropout(true));
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*stack)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "layers.0.code_transform.weight", "layers.0.frozen_codebook",
                       "layers.1.code_transform.weight", "layers.1.frozen_codebook", "rng"}));
  auto copy = std::dynamic_pointer_cast<ResidualSimVQImpl>(stack->clone());
  const auto x = normal({1, 9, 6});
  EXPECT_TRUE(at::equal(stack(x).loss, copy->forward(x).loss));
}

TEST(ResidualSimVQTest, LevelsShareATransform) {
  const auto made = [] {
    SimVQOptions level(1, 1);
    level.codebook_transform(torch::nn::AnyModule(torch::nn::Linear(6, 6)));
    return ResidualSimVQ(ResidualSimVQOptions(6, 2, 11).sim_vq(level));
  };
  auto stack = made(), other = made();
  EXPECT_EQ(stack->parameters().size(), 2U);
  EXPECT_EQ(stack->levels[0]->code_transform.ptr(), stack->levels[1]->code_transform.ptr());
  const auto state = state_dict(*stack);
  for (const char* name : {"layers.0.code_transform.bias", "layers.1.code_transform.bias"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  load_state_dict(*other, state);
  auto copy = std::dynamic_pointer_cast<ResidualSimVQImpl>(stack->clone());
  EXPECT_EQ(copy->levels[0]->code_transform.ptr(), copy->levels[1]->code_transform.ptr());
  EXPECT_NE(copy->levels[0]->code_transform.ptr(), stack->levels[0]->code_transform.ptr());
  const auto x = normal({1, 9, 6});
  const auto expected = stack(x).loss;
  EXPECT_TRUE(at::equal(other(x).loss, expected));
  EXPECT_TRUE(at::equal(copy->forward(x).loss, expected));
}

TEST(ResidualSimVQTest, OptionsAndInputAreChecked) {
  EXPECT_THROW(ResidualSimVQ(ResidualSimVQOptions(6, 0, 11)), c10::ValueError);
  EXPECT_THROW(ResidualSimVQ(ResidualSimVQOptions(6, 3, 0)), c10::ValueError);
  EXPECT_THROW(ResidualSimVQ(options().heads(4)), c10::ValueError);
  EXPECT_THROW(ResidualSimVQ(options().quantize_dropout(true).quantize_dropout_cutoff_index(3)),
               c10::ValueError);
  EXPECT_THROW(ResidualSimVQ(options().quantize_dropout_multiple_of(0)), c10::ValueError);
  EXPECT_THROW(ResidualSimVQ(options().eval_beam_size(0)), c10::ValueError);
  ResidualSimVQ stack(options().heads(2));
  EXPECT_THROW(stack(normal({2, 5, 7})), c10::ValueError);
  EXPECT_THROW(stack->get_output_from_indices(torch::zeros({2, 5, 3}, at::kLong)), c10::ValueError);
}

}  // namespace
}  // namespace torchvq::residual_sim_vq_test
