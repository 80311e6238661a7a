#include <functional>
#include <set>
#include <utility>

#include <torch/autograd.h>
#include <torch/optim/sgd.h>
#include <torchvq/ops/orthogonal_loss.h>

#include "modules/residual_vq_support.h"

#include "expect_throw.h"

namespace torchvq::residual_vq_test {
namespace {

using namespace torchvq::testing;

torch::Tensor run(ResidualVQ& stack, const torch::Tensor& x, const StackCall& call = {}) {
  return stack(x, call).quantized;
}

TEST(ResidualVQTest, EvaluationTakesTheNearestCodeOfEachLevelAndChangesNothing) {
  auto stack = make_stack(stack_options());
  stack->eval();
  const auto before = state_of(*stack);
  const auto x = normal({3, 5, kDim});
  const auto output = stack(x);
  auto residual = x.flatten(0, 1), total = torch::zeros_like(residual);
  for (int64_t level = 0; level < kLevels; ++level) {
    const auto codes = stack->levels[level]->codebook();
    const auto expected = brute_force(residual, codes);
    EXPECT_TRUE(at::equal(output.indices.select(-1, level).flatten(), expected)) << level;
    total = total + codes.index({expected});
    residual = residual - codes.index({expected});
  }
  EXPECT_TRUE(at::equal(output.quantized.flatten(0, 1), total));
  EXPECT_TRUE(at::equal(output.loss, torch::zeros({kLevels})));
  EXPECT_FALSE(output.loss.requires_grad());
  expect_same_state(state_of(*stack), before);
}

TEST(ResidualVQTest, ALevelInEvaluationModeKeepsItsCodes) {
  for (const bool shared : {false, true}) {
    auto stack = make_stack(stack_options().shared_codebook(shared));
    for (auto& level : stack->levels) level->eval();
    if (!shared) stack->levels[0]->train();
    std::vector<torch::Tensor> before;
    for (auto& level : stack->levels) before.push_back(level->codebook().clone());
    for (int step = 0; step < 3; ++step) run(stack, normal({4, 9, kDim}));
    for (int64_t level = 0; level < kLevels; ++level) {
      const bool stays = at::equal(stack->levels[level]->codebook(), before[level]);
      EXPECT_EQ(stays, shared || level > 0) << level;
    }
  }
}

TEST(ResidualVQTest, EveryConfigurationDecodesItsIndices) {
  for (const auto& [name, options] : stack_configurations()) {
    SCOPED_TRACE(name);
    auto stack = make_stack(options);
    train_stack(stack, 0, 2);
    stack->eval();
    const auto x = input_for(options, 9);
    const auto output = stack(x);
    EXPECT_EQ(output.quantized.sizes(), x.sizes());
    EXPECT_TRUE(at::equal(stack->get_output_from_indices(output.indices), output.quantized));
    const auto with_codes = stack(x, StackCall().return_all_codes(true));
    EXPECT_TRUE(at::equal(with_codes.quantized, output.quantized));
    EXPECT_TRUE(at::equal(with_codes.indices, output.indices));
    EXPECT_TRUE(at::equal(stack->get_codes_from_indices(output.indices), with_codes.all_codes));
  }
}

TEST(ResidualVQTest, TheGainFromOutputToInputIsOneForAnyNumberOfLevels) {
  for (const int64_t levels : {1, 2, 8}) {
    auto options = stack_options().num_quantizers(levels);
    options.vq().rotation_trick(false);
    auto stack = make_stack(options);
    const auto x = normal({2, 6, kDim}).requires_grad_();
    run(stack, x).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
  }
}

TEST(ResidualVQTest, TargetsLeaveTheOutputAndItsGradient) {
  // Levels walk one by one in the module where one differs, and else within one operator.
  for (const bool cosine : {false, true}) {
    for (const bool differs : {false, true}) {
      SCOPED_TRACE(::testing::Message() << cosine << differs);
      auto stack =
          make_stack(with([&](auto& o) { o.vq().use_cosine_sim(cosine).rotation_trick(!cosine); }));
      if (differs) stack->levels[1]->options.commitment_weight(2);
      const auto x = normal({2, 6, kDim}).requires_grad_();
      const auto weight = normal({2, 6, kDim}, 1);
      const auto call = StackCall().freeze_codebook(true);
      const auto plain = stack(x, call).quantized;
      const auto targets = at::randint(kCodes, {2, 6, kLevels}, at::kLong);
      const auto scored = stack(x, StackCall(call).indices(targets)).quantized;
      EXPECT_TRUE(at::equal(scored, plain));
      const auto wanted = torch::autograd::grad({(plain * weight).sum()}, {x})[0];
      const auto found = torch::autograd::grad({(scored * weight).sum()}, {x})[0];
      EXPECT_TRUE(at::allclose(found, wanted, 1e-5, 1e-6));
    }
  }
}

TEST(ResidualVQTest, LossesAreTheSquaredDistancesOfEachLevel) {
  auto stack = make_stack(stack_options());
  const auto x = normal({2, 20, kDim});
  const auto output = stack(x, StackCall().return_all_codes(true));
  auto residual = x;
  for (int64_t level = 0; level < kLevels; ++level) {
    residual = residual - output.all_codes[level];
    EXPECT_TRUE(at::allclose(output.loss[level], residual.square().mean())) << level;
  }
  EXPECT_TRUE(at::allclose(output.all_codes.sum(0), output.quantized, 1e-5, 1e-6));
}

TEST(ResidualVQTest, MaskEqualsTheSelectionOfRealTokens) {
  for (const auto& name : {"default", "shared", "kmeans", "implicit"}) {
    SCOPED_TRACE(name);
    const auto options = stack_configurations().at(name);
    const auto x = normal({2, 30, kDim});
    const auto mask = normal({2, 30}, 3) > 0;
    const auto padded =
        x.masked_fill(mask.logical_not().unsqueeze(-1), std::numeric_limits<float>::quiet_NaN());
    auto masked = make_stack(options), selected = make_stack(options);
    load_state_dict(*selected, state_of(*masked));
    const auto actual = masked(padded, StackCall().mask(mask));
    const auto expected = selected(x.index({mask}).unsqueeze(0));
    EXPECT_TRUE(at::allclose(actual.loss, expected.loss));
    EXPECT_TRUE(at::equal(actual.indices.index({mask}), expected.indices[0]));
    EXPECT_TRUE(actual.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
    EXPECT_TRUE(actual.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
    expect_same_state(state_of(*masked), state_of(*selected));
  }
}

TEST(ResidualVQTest, PaddingElsewhereDoesNotChangeASampleWhereGradientsAreOff) {
  // A leaf says that it requires a gradient there, too, but its copy with zeros for padding does not.
  auto options = stack_options();
  options.vq().directional_reparam(true).threshold_ema_dead_code(1e-9);
  const auto x = normal({2, 6, kDim}).requires_grad_();
  const auto call = StackCall().freeze_codebook(true);
  auto mask = torch::ones({2, 6}, at::kBool);
  mask[1][5] = false;
  const torch::NoGradGuard no_grad;
  const auto plain = make_stack(options)(x, call).quantized;
  const auto masked = make_stack(options)(x, StackCall(call).mask(mask)).quantized;
  EXPECT_TRUE(at::equal(masked[0], plain[0]));
}

TEST(ResidualVQTest, NoTokensLeaveTheState) {
  auto compatible = stack_options();
  compatible.vq().vqp_compat(true).codebook_diversity_loss_weight(0.5);
  const auto none = make_stack(compatible)(torch::zeros({2, 0, kDim}));
  EXPECT_TRUE(none.loss.eq(0).all().item<bool>());
  for (const auto& [name, options] : stack_configurations()) {
    if (options.accept_image_fmap()) continue;
    SCOPED_TRACE(name);
    auto stack = make_stack(options);
    const auto before = state_of(*stack);
    const auto nothing = stack(torch::zeros({2, 0, kDim}));
    EXPECT_TRUE(nothing.loss.eq(0).all().item<bool>());
    const auto masked =
        stack(normal({2, 6, kDim}), StackCall().mask(torch::zeros({2, 6}, at::kBool)));
    EXPECT_TRUE(masked.loss.eq(0).all().item<bool>());
    expect_same_state(state_of(*stack), before);
  }
}

TEST(ResidualVQTest, TokensThatAreNotFiniteDoNotReachTheCodes) {
  auto stack = make_stack(stack_options());
  auto x = normal({1, 20, kDim});
  auto twin = make_stack(stack_options());
  load_state_dict(*twin, state_of(*stack));
  auto damaged = at::cat({x, x.slice(1, 0, 1)}, 1);
  damaged[0][20][3] = std::numeric_limits<float>::quiet_NaN();
  const auto output = stack(damaged);
  twin(x);
  EXPECT_TRUE(output.quantized[0][20].isnan().all().item<bool>());
  EXPECT_TRUE(output.indices[0][20].eq(0).all().item<bool>());
  expect_same_state(state_of(*stack), state_of(*twin));
}

TEST(ResidualVQTest, ASharedCodebookLearnsOnceFromAllLevels) {
  auto options = stack_options().shared_codebook(true);
  options.vq().decay(0.5);
  auto stack = make_stack(options);
  const auto x = normal({1, 40, kDim});
  const auto output = stack(x);
  const auto counts = at::one_hot(output.indices.flatten(), kCodes).sum(0).to(at::kFloat);
  EXPECT_TRUE(at::allclose(stack->levels[0]->codebook_state->cluster_size[0], counts * 0.5 + 0.5));
  for (const auto& level : stack->levels) {
    EXPECT_EQ(level->codebook_state.get(), stack->levels[0]->codebook_state.get());
  }
}

TEST(ResidualVQTest, DroppedLevelsHaveNoIndexNoLossAndDoNotLearn) {
  auto stack = make_stack(stack_options().quantize_dropout(true));
  std::set<int64_t> depths;
  for (int step = 0; step < 40; ++step) {
    const auto before = state_of(*stack);
    const auto output = stack(normal({1, 20, kDim}, step));
    const auto used = output.indices.ge(0).flatten(0, 1).all(0);
    const auto depth = used.sum().item<int64_t>();
    depths.insert(depth);
    EXPECT_TRUE(at::equal(output.loss.gt(0), used));
    const auto after = state_of(*stack);
    for (int64_t level = depth; level < kLevels; ++level) {
      const auto name = "layers." + std::to_string(level) + "._codebook.embed";
      EXPECT_TRUE(at::equal(before.at(name), after.at(name))) << name;
    }
  }
  EXPECT_EQ(depths, (std::set<int64_t>{1, 2, 3}));
}

TEST(ResidualVQTest, BeamsLeaveLessAndABeamOfOneIsTheGreedyWalk) {
  auto stack = make_stack(stack_options());
  stack->eval();
  const auto x = normal({4, 50, kDim});
  const auto error = [&](const torch::Tensor& output) {
    return (x - output).square().sum().item<double>();
  };
  const auto greedy = run(stack, x);
  EXPECT_TRUE(at::equal(run(stack, x, StackCall().beam_size(1)), greedy));
  const auto beam = stack(x, StackCall().beam_size(8));
  EXPECT_LT(error(beam.quantized), 0.95 * error(greedy));
  EXPECT_TRUE(at::equal(stack->get_output_from_indices(beam.indices), beam.quantized));
}

TEST(ResidualVQTest, TargetsGiveTheSumOfCrossEntropies) {
  auto stack = make_stack(stack_options());
  stack->eval();
  const auto x = normal({2, 5, kDim});
  const auto plain = stack(x, StackCall().return_all_codes(true));
  const auto output = stack(x, StackCall().indices(plain.indices));
  EXPECT_TRUE(at::equal(output.quantized, plain.quantized));
  auto residual = x.flatten(0, 1);
  auto expected = torch::zeros({});
  for (int64_t level = 0; level < kLevels; ++level) {
    const auto distance = at::cdist(residual, stack->levels[level]->codebook());
    expected =
        expected + at::cross_entropy_loss(-distance, plain.indices.select(-1, level).flatten());
    residual = residual - plain.all_codes[level].flatten(0, 1);
  }
  EXPECT_TRUE(at::allclose(output.loss, expected, 1e-4, 1e-5));
}

TEST(ResidualVQTest, AFrozenStackLearnsNothing) {
  auto stack = make_stack(stack_options());
  const auto before = state_of(*stack);
  stack(normal({2, 20, kDim}), StackCall().freeze_codebook(true));
  for (const auto& [name, value] : state_of(*stack)) {
    if (!name.ends_with("rng")) EXPECT_TRUE(at::equal(value, before.at(name))) << name;
  }
}

TEST(ResidualVQTest, AFrozenLevelIsOneInEvaluationMode) {
  for (const bool shared : {false, true}) {
    auto frozen = make_stack(stack_options().shared_codebook(shared));
    auto other = make_stack(stack_options().shared_codebook(shared));
    load_state_dict(*other, state_of(*frozen));
    frozen->levels[1]->options.freeze_codebook(true);
    other->levels[1]->Module::train(false);
    if (shared) other->levels[1]->codebook_state->train();
    for (int step = 0; step < 3; ++step) {
      const auto x = normal({2, 20, kDim}, 100 + step);
      EXPECT_TRUE(at::equal(frozen(x).indices, other(x).indices));
    }
    expect_same_state(state_of(*frozen), state_of(*other));
  }
}

using Change = std::function<void(VectorQuantizeImpl&)>;

/// Options of one level that stacks with moving averages, or codes that learn by gradient, may have.
std::vector<Change> changes_of_a_level() {
  return {[](auto& level) { level.codebook_state->options.decay(0.1); },
          [](auto& level) { level.codebook_state->options.threshold_ema_dead_code(2); },
          [](auto& level) { level.options.freeze_codebook(true); },
          [](auto& level) { level.options.ema_update(false); }, [](auto& level) { level.eval(); }};
}

TEST(ResidualVQTest, EachLevelLearnsByItsOwnOptions) {
  const std::vector<StackOptions> stacks{
      with([](auto& o) { o.codebook_size(64); }),
      with([](auto& o) { o.codebook_size(64).vq().sync_every(2); }),
      with([](auto& o) { o.codebook_size(64).vq().learnable_codebook(true).ema_update(false); })};
  for (const auto& options : stacks) {
    for (const auto& change : changes_of_a_level()) {
      for (int64_t changed = 0; changed < kLevels; ++changed) {
        auto stack = make_stack(options), chain = make_stack(options);
        load_state_dict(*chain, state_of(*stack));
        for (int step = 0; step < 5; ++step) {
          if (step == 1) {
            change(*stack->levels[changed]);
            change(*chain->levels[changed]);
          }
          if (step == 4) {  // a level that was frozen for a while
            stack->levels[changed]->options.freeze_codebook(false);
            chain->levels[changed]->options.freeze_codebook(false);
          }
          auto residual = normal({2, 20, kDim}, 100 + step);
          stack(residual);
          for (auto& level : chain->levels) {
            residual = residual - level(residual).quantized.detach();
          }
        }
        const auto wanted = state_of(*chain);
        for (const auto& [name, value] : state_of(*stack)) {
          // A stack draws for its levels from one generator each, as its levels alone do.
          EXPECT_TRUE(at::equal(value, wanted.at(name))) << name << " of " << changed;
        }
      }
    }
  }
}

TEST(ResidualVQTest, ALevelWithoutMovingAveragesKeepsItsCodes) {
  auto stack = make_stack(stack_options());
  stack->levels[1]->options.ema_update(false);
  std::vector<torch::Tensor> before;
  for (auto& level : stack->levels) before.push_back(level->codebook().clone());
  stack(normal({2, 20, kDim}));
  for (int64_t n = 0; n < kLevels; ++n)
    EXPECT_EQ(at::equal(stack->levels[n]->codebook(), before[n]), n == 1) << n;
}

TEST(ResidualVQTest, AFrozenLevelThatSamplesDrawsInEveryStep) {
  auto stack = make_stack(with([](auto& o) { o.vq().stochastic_sample_codes(true).decay(1); }));
  stack->levels[0]->options.freeze_codebook(true);
  const auto x = normal({2, 20, kDim});
  const auto first = stack(x).indices.select(-1, 0);
  EXPECT_FALSE(at::equal(first, stack(x).indices.select(-1, 0)));
}

TEST(ResidualVQTest, BeamsThatAreSetLaterAreChecked) {
  auto stack = make_stack(stack_options());
  stack->options.beam_size(0);
  EXPECT_THROW(stack(normal({2, 20, kDim})), c10::ValueError);
  stack->options.eval_beam_size(-1);
  stack->eval();
  EXPECT_THROW(stack(normal({2, 20, kDim})), c10::ValueError);
}

TEST(ResidualVQTest, EachLevelHasItsOwnWeights) {
  auto stack = make_stack(with([](auto& o) { o.vq().orthogonal_reg_weight(0.5); }));
  auto other = make_stack(with([](auto& o) { o.vq().orthogonal_reg_weight(0.5); }));
  load_state_dict(*other, state_of(*stack));
  other->levels[2]->options.orthogonal_reg_weight(1.5);
  other->levels[1]->options.commitment_weight(3);
  const auto x = normal({2, 20, kDim});
  const auto one = stack(x).loss, two = other(x).loss;
  const auto orthogonal = ops::orthogonal_loss(stack->levels[2]->codebook_state->embed);
  EXPECT_TRUE(at::equal(one[0], two[0]));
  EXPECT_TRUE(at::allclose(two[2] - one[2], orthogonal.to(at::kFloat), 1e-4, 1e-5));
  EXPECT_GT((two[1] / one[1]).item<double>(), 1.5);
  expect_same_state(state_of(*stack), state_of(*other));
}

TEST(ResidualVQTest, AGraphThatHoldsWeightsBeforeTheirStepRaises) {
  auto options = with([](auto& o) {
    o.vq().learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(
        [](std::vector<torch::Tensor> own) {
          return std::make_shared<torch::optim::SGD>(std::move(own), torch::optim::SGDOptions(0.1));
        });
    o.vq().vq_bridge(torch::nn::AnyModule(torch::nn::Linear(kDim, kDim)));
  });
  auto stack = make_stack(options);
  const auto output = stack(normal({2, 20, kDim}).requires_grad_());
  EXPECT_THROW((output.quantized.sum() + output.loss.sum()).backward(), c10::Error);
}

TEST(ResidualVQTest, TrainingLowersTheError) {
  auto options = StackOptions(kDim).num_quantizers(4).codebook_size(kCodes);
  options.vq().kmeans_init(true).threshold_ema_dead_code(1);
  ResidualVQ stack(options);
  const auto x = normal({1, 2000, kDim});
  stack(x);
  for (int step = 0; step < 30; ++step) stack(x);
  stack->eval();
  auto random = make_stack(options.vq(VectorQuantizeOptions(1)));
  random->eval();
  const auto error = [&](ResidualVQ& module) { return (run(module, x) - x).square().mean(); };
  EXPECT_LT(error(stack).item<float>(), 0.5 * error(random).item<float>());
}

// Groups ------------------------------------------------------------------------------------------

TEST(GroupedResidualVQTest, EachGroupIsAStackOfItsOwnFeatures) {
  GroupedResidualVQ groups(GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options()));
  const auto x = normal({3, 5, kDim});
  std::vector<ResidualVQ> twins;
  for (const auto& rvq : groups->rvqs) {
    twins.emplace_back(std::dynamic_pointer_cast<ResidualVQImpl>(rvq->clone()));
  }
  const auto output = groups(x, StackCall().return_all_codes(true));
  EXPECT_EQ(output.indices.sizes(), (at::IntArrayRef{2, 3, 5, kLevels}));
  EXPECT_EQ(output.all_codes.sizes(), (at::IntArrayRef{2, kLevels, 3, 5, kDim / 2}));
  const auto parts = x.chunk(2, -1);
  for (int group = 0; group < 2; ++group) {
    const auto own = twins[group](parts[group]);
    EXPECT_TRUE(at::equal(output.indices[group], own.indices));
    EXPECT_TRUE(at::equal(output.loss[group], own.loss));
    EXPECT_TRUE(at::equal(output.quantized.chunk(2, -1)[group], own.quantized));
  }
  groups->eval();
  const auto evaluated = groups(x);
  EXPECT_TRUE(at::equal(groups->get_output_from_indices(evaluated.indices), evaluated.quantized));
}

// Errors ------------------------------------------------------------------------------------------

TEST(GroupedResidualVQTest, AGroupLearnsBesideOneThatEvaluates) {
  GroupedResidualVQ groups(GroupedResidualVQOptions(kDim).groups(2).rvq(
      with([](auto& o) { o.vq().affine_param(true); })));
  groups->rvqs[0]->eval();
  const auto first = state_of(*groups->rvqs[0]);
  const auto second = groups->rvqs[1]->levels[0]->codebook_state->embed.clone();
  groups(normal({2, 20, kDim}), StackCall().return_all_codes(true));
  expect_same_state(state_of(*groups->rvqs[0]), first);
  EXPECT_FALSE(at::equal(groups->rvqs[1]->levels[0]->codebook_state->embed, second));
}

TEST(GroupedResidualVQTest, AGroupThatEvaluatesDropsNoLevels) {
  for (const int64_t evaluating : {0, 1}) {
    GroupedResidualVQ groups(GroupedResidualVQOptions(kDim).groups(2).rvq(
        with([](auto& o) { o.quantize_dropout(true); })));
    groups->rvqs[evaluating]->eval();
    bool dropped = false;
    for (int step = 0; step < 10; ++step) {
      const auto absent = groups(normal({2, 4, kDim})).indices.lt(0);
      EXPECT_FALSE(absent[evaluating].any().item<bool>());
      dropped = dropped || absent[1 - evaluating].any().item<bool>();
    }
    EXPECT_TRUE(dropped);
  }
}

TEST(ResidualVQTest, WrongOptionsAreNamed) {
  const auto refuse = [](const StackOptions& wrong, const std::string& fragment) {
    expect_throw_with<c10::ValueError>([&] { ResidualVQ stack(wrong); }, fragment);
  };
  refuse(StackOptions(kDim), "ResidualVQ: expected num_quantizers to be at least 1, but got None");
  refuse(stack_options().codebook_size({4, 5}), "num_quantizers to be the number of codebook");
  refuse(StackOptions(kDim).codebook_size({4, 5}).shared_codebook(true), "codebook is shared");
  refuse(stack_options().quantize_dropout(true).quantize_dropout_cutoff_index(3),
         "in [0, 2], but got 3");
  refuse(stack_options().quantize_dropout_multiple_of(0), "multiple_of to be at least 1");
  refuse(stack_options().codebook_dim(-1), "codebook_dim to be at least 1, but got -1");
  refuse(stack_options().quant_grad_frac(1.5), "quant_grad_frac to be in [0, 1], but got 1.5");
  refuse(stack_options().beam_size(0), "expected beam_size to be at least 1, but got 0");
  refuse(stack_options().beam_score_quantizer_weights(std::vector<double>{1, -1, 1}),
         "beam_score_quantizer_weights to be 3 finite, non-negative numbers");
  refuse(with([](auto& o) { o.diveq(true).vq().use_cosine_sim(true); }), "use_cosine_sim");
  refuse(with([](auto& o) { o.vq().decay(2); }), "expected decay to be in [0, 1]");
  expect_throw_with<c10::ValueError>(
      [] { GroupedResidualVQ groups(GroupedResidualVQOptions(8).groups(3)); },
      "expected dim to be a multiple of 3 groups, but got 8");
  expect_throw_with<c10::ValueError>(
      [] { GroupedResidualVQ groups(GroupedResidualVQOptions(8).groups(0)); },
      "expected groups to be at least 1, but got 0");
}

TEST(ResidualVQTest, WrongCallsAreNamedAndLeaveTheState) {
  auto stack = make_stack(stack_options());
  const auto before = state_of(*stack);
  const auto x = normal({2, 6, kDim});
  const auto refuse = [&]<typename Error>(std::type_identity<Error>, const torch::Tensor& input,
                                          const StackCall& call, const std::string& fragment) {
    expect_throw_with<Error>([&] { stack(input, call); }, fragment);
  };
  const std::type_identity<c10::ValueError> value;
  const std::type_identity<c10::TypeError> type;
  refuse(value, normal({2, 6, 7}), {}, "ResidualVQ: expected x to have 8 features (dim)");
  refuse(type, x.to(at::kLong), {}, "x");
  refuse(type, x, StackCall().mask(at::ones({2, 6})), "expected mask to be");
  refuse(value, x, StackCall().beam_size(0), "expected beam_size to be at least 1");
  refuse(value, x, StackCall().indices(at::zeros({2, 6, 2}, at::kLong)), "to have 3 levels");
  refuse(std::type_identity<c10::IndexError>(), x,
         StackCall().indices(at::full({2, 6, kLevels}, kCodes, at::kLong)), "");
  expect_throw_with<c10::ValueError>(
      [&] { stack->get_output_from_indices(at::zeros({2, 6, 2}, at::kLong)); },
      "expected indices to have 3 levels on the last axis");
  expect_throw_with<c10::IndexError>(
      [&] { stack->get_codes_from_indices(at::full({2, 6, kLevels}, kCodes, at::kLong)); }, "");
  expect_same_state(state_of(*stack), before);
}

TEST(ResidualVQTest, ABeamAtTemperatureZeroTakesNoSamples) {
  const auto options = with([](auto& o) { o.vq().stochastic_sample_codes(true); });
  const auto x = normal({2, 6, kDim});
  auto stack = make_stack(options), plain = make_stack(stack_options());
  const auto nearest = stack(x, StackCall().beam_size(2).sample_codebook_temp(0));
  EXPECT_TRUE(nearest.indices.equal(plain(x, StackCall().beam_size(2)).indices));
}

}  // namespace
}  // namespace torchvq::residual_vq_test
