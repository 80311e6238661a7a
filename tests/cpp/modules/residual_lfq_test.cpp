// ResidualLFQ and GroupedResidualLFQ in C++.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <torchvq/modules/residual_lfq.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::residual_lfq_test {
namespace {

ResidualLFQOptions options() {
  return ResidualLFQOptions(4, 3, 16).lfq(LFQOptions().commitment_loss_weight(0.25));
}

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes) * 0.7;
}

TEST(ResidualLFQTest, LevelsHalveTheirCodes) {
  ResidualLFQ stack(options());
  stack->eval();
  const auto x = normal({2, 5, 4});
  const auto output = stack(x);
  auto residual = x, total = at::zeros_like(x);
  for (int64_t level = 0; level < 3; ++level) {
    const double scale = std::pow(2.0, -static_cast<double>(level));
    const auto codes = at::where(residual > 0, scale, -scale);
    residual = residual - codes;
    total = total + codes;
  }
  EXPECT_TRUE(at::equal(output.quantized, total.to(at::kFloat)));
  EXPECT_EQ(output.indices.sizes(), (std::vector<int64_t>{2, 5, 3}));
  EXPECT_TRUE(at::equal(output.loss, torch::zeros({3})));
  EXPECT_TRUE(at::equal(stack->get_output_from_indices(output.indices), output.quantized));
}

TEST(ResidualLFQTest, ClampsBelowTheSmallestNumberHaveAGradient) {
  ResidualLFQ stack(ResidualLFQOptions(4, 160, 16)
                        .lfq(LFQOptions().commitment_loss_weight(0.25))
                        .soft_clamp_input_value(1.5));
  const auto x = normal({2, 5, 4}).requires_grad_();
  const auto output = stack(x);
  (output.quantized.sum() + output.loss.sum()).backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(ResidualLFQTest, EveryVariantDecodesItsIndices) {
  const auto lfq = LFQOptions().commitment_loss_weight(0.25);
  for (const auto& own :
       {options(), ResidualLFQOptions(7, 3, 16), options().is_channel_first(true),
        options().lfq(LFQOptions(lfq).spherical(true)),
        options().lfq(LFQOptions(lfq).orthogonal_rotation(true)),
        options().soft_clamp_input_value(1.5), options().quantize_dropout(true)}) {
    ResidualLFQ stack(own);
    stack->eval();
    const auto shape = own.is_channel_first() ? std::vector<int64_t>{2, own.dim(), 3, 4}
                                              : std::vector<int64_t>{2, 5, own.dim()};
    const auto output = stack(normal(shape), ResidualLFQForwardOptions().return_all_codes(true));
    EXPECT_EQ(output.quantized.sizes(), shape);
    const auto decoded = stack->get_output_from_indices(output.indices);
    EXPECT_TRUE(at::allclose(decoded, output.quantized, 1e-5, 1e-6));
    const auto codes = stack->get_codes_from_indices(output.indices);
    EXPECT_TRUE(at::allclose(codes, output.all_codes, 1e-5, 1e-6));
  }
}

TEST(ResidualLFQTest, TakesImagesAndVolumesAsFeaturesFirst) {
  ResidualLFQ plain(options()), first(options().is_channel_first(true));
  plain->eval(), first->eval();
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 4, 3, 3}, {2, 4, 4, 4}}) {
    const auto x = normal(shape);
    const auto found = plain(x), expected = first(x);
    EXPECT_TRUE(at::equal(found.quantized, expected.quantized));
    EXPECT_TRUE(at::equal(found.indices, expected.indices));
  }
}

TEST(ResidualLFQTest, KeepsTheAxisOfItsCodebook) {
  const auto own = options().lfq(options().lfq().keep_num_codebooks_dim(true));
  ResidualLFQ plain(options()), kept(own);
  plain->eval(), kept->eval();
  const auto x = normal({2, 5, 4});
  const auto expected = plain(x), found = kept(x);
  EXPECT_TRUE(at::equal(found.indices, expected.indices.unsqueeze(-2)));
  EXPECT_TRUE(at::equal(kept->get_output_from_indices(found.indices), expected.quantized));
  EXPECT_TRUE(at::equal(kept->get_codes_from_indices(found.indices),
                        plain->get_codes_from_indices(expected.indices)));
  EXPECT_THROW(kept->get_output_from_indices(expected.indices), c10::ValueError);
  EXPECT_THROW(kept->get_codes_from_indices({}), c10::TypeError);

  GroupedResidualLFQ groups(GroupedResidualLFQOptions(8, own).groups(2));
  groups->eval();
  const auto joined = groups(normal({2, 5, 8}));
  EXPECT_EQ(joined.indices.sizes(), (std::vector<int64_t>{2, 2, 5, 1, 3}));
  EXPECT_TRUE(at::allclose(groups->get_output_from_indices(joined.indices), joined.quantized));
}

TEST(ResidualLFQTest, GainIsOneOrThatOfTheReference) {
  for (const bool compat : {false, true}) {
    auto own = options().vqp_compat(compat);
    own.lfq(own.lfq().entropy_loss_weight(0));
    ResidualLFQ stack(own);
    auto x = normal({2, 5, 4}).requires_grad_();
    stack(x).quantized.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), at::full_like(x, compat ? 3 : 1)));
  }
}

TEST(ResidualLFQTest, MaskedIsAbsent) {
  ResidualLFQ stack(options());
  auto x = normal({2, 3, 4});
  const auto mask = torch::tensor({{true, false, true}, {false, true, true}});
  x.index_put_({mask.logical_not()}, std::nan(""));
  const auto found = stack(x, ResidualLFQForwardOptions().mask(mask));
  const auto right = stack(x.index({mask}).unsqueeze(0));
  EXPECT_TRUE(at::allclose(found.loss, right.loss));
  EXPECT_TRUE(at::equal(found.indices.index({mask}), right.indices[0]));
  EXPECT_TRUE(found.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  EXPECT_TRUE(found.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
}

TEST(ResidualLFQTest, GroupsDropTheSameLevels) {
  const auto own = ResidualLFQOptions(0, 6, 16).quantize_dropout(true).lfq(
      LFQOptions().frac_per_sample_entropy(0.5).spherical(true));
  GroupedResidualLFQ module(GroupedResidualLFQOptions(8, ResidualLFQOptions(own).dim(4)).groups(2));
  for (int step = 0; step < 10; ++step) {
    const auto output = module(normal({1, 3, 8}));
    EXPECT_EQ(output.indices.sizes(), (std::vector<int64_t>{2, 1, 3, 6}));
    EXPECT_EQ(output.loss.sizes(), (std::vector<int64_t>{2, 6}));
    EXPECT_TRUE(at::equal(output.indices[0].ge(0), output.indices[1].ge(0)));
  }
  module->rvqs[0]->eval();
  for (int step = 0; step < 10; ++step) {
    EXPECT_TRUE(module(normal({1, 3, 8})).indices[0].ge(0).all().item<bool>());
  }
  module->eval();
  const auto output = module(normal({1, 3, 8}));
  const auto decoded = module->get_output_from_indices(output.indices);
  EXPECT_TRUE(at::allclose(decoded, output.quantized));
  EXPECT_EQ(module->codebooks().sizes(), (std::vector<int64_t>{2, 6, 16, 4}));
}

TEST(ResidualLFQTest, StateHasTheNamesOfPython) {
  ResidualLFQ stack(ResidualLFQOptions(7, 2, 16).lfq(LFQOptions().frac_per_sample_entropy(0.5)));
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*stack)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.mask", "layers.1.mask", "project_in.bias",
                                             "project_in.weight", "project_out.bias",
                                             "project_out.weight", "rng"}));
  auto copy = std::dynamic_pointer_cast<ResidualLFQImpl>(stack->clone());
  const auto x = normal({1, 9, 7});
  EXPECT_TRUE(at::equal(stack(x).loss, copy->forward(x).loss));
}

TEST(ResidualLFQTest, LevelsAndGroupsShareAnActivationThatIsListedOnce) {
  const auto with_activation = [] {
    auto own = options();
    own.lfq().straight_through_activation(torch::nn::AnyModule(torch::nn::Linear(4, 4)));
    return own;
  };
  const auto grouped = [&] { return GroupedResidualLFQOptions(8, with_activation()).groups(2); };
  ResidualLFQ stack(with_activation()), other(with_activation());
  GroupedResidualLFQ groups(grouped()), other_groups(grouped());
  const auto check = [](auto& module, auto& loaded, const torch::Tensor& x,
                        const std::string& last) {
    EXPECT_EQ(module->parameters().size(), 2U);
    const auto state = state_dict(*module);
    EXPECT_TRUE(state.contains(last));
    load_state_dict(*loaded, state);
    const auto copy = module->clone();
    EXPECT_EQ(copy->parameters().size(), 2U);
    EXPECT_TRUE(at::equal(copy->parameters()[0], module->parameters()[0]));
    EXPECT_TRUE(at::equal(loaded->parameters()[0], module->parameters()[0]));
    const auto weight = module->parameters()[0].detach().clone();
    torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1));
    module(x).quantized.square().sum().backward();
    optimizer.step();
    const auto stepped = weight - 0.1 * module->parameters()[0].grad();
    EXPECT_TRUE(at::allclose(module->parameters()[0], stepped, 1e-5, 1e-7));
  };
  check(stack, other, normal({2, 5, 4}), "layers.2.activation.bias");
  check(groups, other_groups, normal({2, 5, 8}), "rvqs.1.layers.2.activation.bias");
}

TEST(ResidualLFQTest, OptionsAreChecked) {
  EXPECT_THROW(ResidualLFQ(ResidualLFQOptions(4, 3, 10)), c10::ValueError);
  EXPECT_THROW(ResidualLFQ(ResidualLFQOptions(4, 0, 16)), c10::ValueError);
  EXPECT_THROW(ResidualLFQ(ResidualLFQOptions(0, 3, 16)), c10::ValueError);
  EXPECT_THROW(ResidualLFQ(options().quantize_dropout(true).quantize_dropout_cutoff_index(3)),
               c10::ValueError);
  EXPECT_THROW(ResidualLFQ(options().soft_clamp_input_value(0.5)), c10::ValueError);
  EXPECT_THROW(ResidualLFQ(options().lfq(LFQOptions().num_codebooks(2))), c10::ValueError);
  EXPECT_THROW(GroupedResidualLFQ(GroupedResidualLFQOptions(7, options()).groups(2)),
               c10::ValueError);
}

}  // namespace
}  // namespace torchvq::residual_lfq_test
