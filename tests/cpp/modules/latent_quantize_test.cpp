#include <string>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <torchvq/modules/latent_quantize.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::latent_quantize_test {
namespace {

using Options = LatentQuantizeOptions;

Options options() { return Options({4, 3, 5}, 3); }

/// Float64 distances to every value, feature by feature.
at::Tensor nearest(const at::Tensor& x, const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> columns;
  for (size_t j = 0; j < values.size(); ++j) {
    const auto own = values[j].detach().to(at::kDouble);
    const auto level = (x.select(-1, static_cast<int64_t>(j)).to(at::kDouble).unsqueeze(-1) - own)
                           .abs()
                           .argmin(-1);
    columns.push_back(own.index({level}));
  }
  return at::stack(columns, -1).to(x.scalar_type());
}

TEST(LatentQuantizeTest, TakesTheNearestValuesAndDecodesItsIndices) {
  for (const auto& shape : {std::vector<int64_t>{2, 3}, {2, 3, 7}, {2, 3, 4, 5}, {2, 3, 2, 2, 3}}) {
    LatentQuantize module(options());
    const auto x = at::randn(shape) * 0.5;
    const auto output = module(x);
    const auto expected = nearest(x.movedim(1, -1), module->values()).movedim(-1, 1);
    EXPECT_TRUE(at::equal(output.quantized, expected));
    EXPECT_TRUE(at::equal(module->indices_to_codes(output.indices), output.quantized));
    EXPECT_TRUE(at::allclose(output.loss, 0.2 * (x - expected).square().mean()));
  }
}

TEST(LatentQuantizeTest, ValuesAndInputsGetTheirGradients) {
  LatentQuantize module(options().commitment_loss_weight(0.3).quantization_loss_weight(0.7));
  const auto x = at::randn({2, 3, 40}).requires_grad_();
  const auto output = module(x);
  (output.quantized.sum() + output.loss).backward();
  const auto rest = (x - output.quantized).detach();
  EXPECT_TRUE(at::allclose(x.grad(), 1 + 0.6 * rest / x.numel(), 1e-5, 1e-7));
  for (int64_t j = 0; j < 3; ++j) {
    const auto own = module->values()[static_cast<size_t>(j)];
    for (int64_t level = 0; level < own.numel(); ++level) {
      const auto chosen = output.quantized.select(1, j).eq(own[level]);
      const auto expected = -1.4 * rest.select(1, j).masked_select(chosen).sum() / x.numel();
      EXPECT_TRUE(at::allclose(own.grad()[level], expected, 1e-4, 1e-6));
    }
  }
}

TEST(LatentQuantizeTest, InPlaceOptimizerStepsAndItsStateIsSaved) {
  const auto adam = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.05));
  };
  LatentQuantize one(options().in_place_codebook_optimizer(adam));
  LatentQuantize two(options().in_place_codebook_optimizer(adam));
  const auto x = at::randn({2, 3, 40});
  const auto before = one->values()[0].detach().clone();
  one(x);
  EXPECT_FALSE(at::equal(one->values()[0], before));
  const auto moved = one->values()[0].detach().clone();
  one(at::zeros({2, 3, 0}));  // without a token there is no step, which the moments would make
  EXPECT_TRUE(at::equal(one->values()[0], moved));
  const std::string name = "torch::optim::Adam of rate 0.05";
  const std::string others = ", betas 0.9 and 0.999, eps 1e-08, amsgrad False, weight_decay 0.0";
  EXPECT_EQ(two->in_place_optimizer_text(), name + others);
  load_state_dict(*two, state_dict(*one));
  EXPECT_EQ(two->in_place_optimizer_text(), name + " with loaded state" + others);
  const auto copy = std::dynamic_pointer_cast<LatentQuantizeImpl>(one->clone());
  const auto expected = one(x).quantized;
  EXPECT_TRUE(at::equal(expected, two(x).quantized));
  EXPECT_TRUE(at::equal(expected, copy->forward(x).quantized));
  EXPECT_TRUE(at::equal(one->values()[0], two->values()[0]));
}

TEST(LatentQuantizeTest, CopiesForAnotherDeviceHaveTheirFixedValuesThere) {
  const LatentQuantize module(options().optimize_values(false));
  const auto copy =
      std::dynamic_pointer_cast<LatentQuantizeImpl>(module->clone(torch::Device("meta")));
  for (const auto& own : copy->values()) EXPECT_TRUE(own.is_meta());
  for (const auto& own : module->values()) EXPECT_TRUE(own.is_cpu());
}

TEST(LatentQuantizeTest, MomentsThatAreNoNumbersOfTheirKindAreRefused) {
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  const auto x = at::randn({2, 3, 40});
  LatentQuantize one(options().in_place_codebook_optimizer(sgd));
  one(x);
  auto state = one->in_place_optimizer_state();
  for (auto& entry : state) entry.second = entry.second.to(at::kLong);
  EXPECT_THROW(one->load_in_place_optimizer_state(state), c10::ValueError);
}

TEST(LatentQuantizeTest, InPlaceOptimizerStepsInInferenceModeAsWithoutGradients) {
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  const auto x = at::randn({2, 3, 40});
  std::vector<torch::Tensor> values;
  for (const bool inference : {false, true}) {
    LatentQuantize module(options().in_place_codebook_optimizer(sgd));
    {
      const torch::NoGradGuard no_grad;
      const c10::InferenceMode mode(inference);
      module(x, x.select(1, 0).gt(0));
    }
    module(x);
    values.push_back(module->values()[0].detach().clone());
  }
  EXPECT_TRUE(at::equal(values[0], values[1]));
}

TEST(LatentQuantizeTest, MaskedTokensAreAbsent) {
  LatentQuantize module(Options({4, 3, 5}, 7).num_codebooks(2));
  const auto x = at::randn({3, 7, 8});
  const auto mask = at::rand({3, 8}) < 0.6;
  const auto output = module(x, mask);
  const auto alone = module(x.movedim(1, -1).index({mask}));
  EXPECT_TRUE(at::allclose(output.quantized.movedim(1, -1).index({mask}), alone.quantized));
  EXPECT_TRUE(at::equal(output.indices.index({mask}), alone.indices));
  EXPECT_TRUE(at::allclose(output.loss, alone.loss));
  EXPECT_TRUE(output.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
}

TEST(LatentQuantizeTest, EvaluationHasNoLossAndFixedValuesNoState) {
  LatentQuantize module(options().optimize_values(false));
  EXPECT_TRUE(state_dict(*module).empty());
  module->eval();
  const auto output = module(at::randn({2, 3, 5}).requires_grad_());
  EXPECT_EQ(output.loss.item<float>(), 0);
  EXPECT_FALSE(output.loss.requires_grad());
}

TEST(LatentQuantizeTest, BadArgumentsAreRefused) {
  EXPECT_THROW(LatentQuantize(Options({}, 3)), c10::ValueError);
  EXPECT_THROW(LatentQuantize(Options({1, 3}, 3)), c10::ValueError);
  EXPECT_THROW(LatentQuantize(Options(5, 16, -1)), c10::ValueError);
  EXPECT_THROW(LatentQuantize(options().commitment_loss_weight(-1)), c10::ValueError);
  LatentQuantize module(options());
  EXPECT_THROW(module(at::zeros({2, 4, 5})), c10::ValueError);
  EXPECT_THROW(module(at::zeros({2, 3}, at::kLong)), c10::TypeError);
  EXPECT_THROW(module->indices_to_codes(at::full({1}, 60)), c10::IndexError);
}

}  // namespace
}  // namespace torchvq::latent_quantize_test
