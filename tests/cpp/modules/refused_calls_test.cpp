// A refused call leaves no trace in a module: everything is checked before anything is written.
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include <torch/optim/sgd.h>

#include <torchvq/torchvq.h>

#include "expect_throw.h"
#include "modules/vector_quantize_support.h"

namespace torchvq::refused_calls_test {
namespace {

using namespace torchvq::testing;

constexpr int64_t kDim = 4;
constexpr int64_t kCodes = 8;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Options options() { return Options(kDim).codebook_size(kCodes); }

std::shared_ptr<torch::optim::SGD> sgd(std::vector<torch::Tensor> parameters) {
  return std::make_shared<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1));
}

/// Ways to learn that write at different places of a step.
std::vector<Options> ways_to_learn() {
  return {options(), options().kmeans_init(true), options().affine_param(true),
          options().learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(sgd)};
}

ResidualVQOptions stack(const Options& vq) {
  return ResidualVQOptions(kDim).num_quantizers(2).codebook_size(kCodes).vq(vq);
}

struct Targets {
  torch::Tensor indices;
  std::string fragment;
};

TEST(RefusedCallsTest, TargetsLeaveNoTrace) {
  const auto x = normal({2, 6, kDim});
  const auto refuse = [&]<typename Error>(std::type_identity<Error>, const torch::Tensor& wrong,
                                          const std::string& fragment) {
    // Only the last level of the last group is wrong.
    const auto first = at::zeros_like(wrong);
    const auto levels = at::stack({first, wrong}, -1);
    const auto groups = at::stack({at::stack({first, first}, -1), levels});
    for (const auto& way : ways_to_learn()) {
      VectorQuantize vq(way);
      leaves_no_trace<Error>(
          vq, [&] { vq(x, CallOptions().indices(wrong)); },
          "VectorQuantize: expected indices to " + fragment);
      ResidualVQ rvq(stack(way));
      leaves_no_trace<Error>(
          rvq, [&] { rvq(x, ResidualVQForwardOptions().indices(levels)); },
          "ResidualVQ: expected indices to " + fragment);
      GroupedResidualVQ grouped(GroupedResidualVQOptions(2 * kDim).groups(2).rvq(stack(way)));
      leaves_no_trace<Error>(
          grouped,
          [&] { grouped(normal({2, 6, 2 * kDim}), ResidualVQForwardOptions().indices(groups)); },
          "ResidualVQ: expected indices to " + fragment);
    }
  };
  const std::type_identity<c10::IndexError> index;
  refuse(index, at::full({2, 6}, kCodes, at::kLong), "be in [-1, 8), but got 8");
  refuse(index, at::full({2, 6}, -2, at::kLong), "be in [-1, 8), but got -2");
  refuse(std::type_identity<c10::ValueError>(), at::zeros({2, 5}, at::kLong),
         "have shape [2, 6], but got shape [2, 5]");
  refuse(std::type_identity<c10::ValueError>(), at::zeros({6, 2}, at::kLong), "have shape [2, 6]");
  refuse(std::type_identity<c10::TypeError>(), at::zeros({2, 6}), "be integers, but got Float");
}

TEST(RefusedCallsTest, TargetsOfScalesLeaveNoTrace) {
  HierarchicalVQ hvq(HierarchicalVQOptions(kDim, kCodes, {6, 6}));
  const auto x = normal({2, kDim, 6});
  const auto good = at::zeros({2, 6}, at::kLong);
  const auto call = [&](const torch::Tensor& wrong) {
    return [&hvq, x, good, wrong] {
      hvq(x, HierarchicalVQForwardOptions().indices(std::vector<torch::Tensor>{good, wrong}));
    };
  };
  leaves_no_trace<c10::IndexError>(hvq, call(good + kCodes),
                                   "HierarchicalVQ: expected indices to be in [-1, 8)");
  leaves_no_trace<c10::TypeError>(hvq, call(good.to(at::kFloat)),
                                  "HierarchicalVQ: expected indices to be integers");
}

TEST(RefusedCallsTest, TemperaturesLeaveNoTrace) {
  const auto x = normal({2, 6, kDim});
  const auto sampling = options().stochastic_sample_codes(true).kmeans_init(true);
  for (const double value : {kNaN, kInfinity}) {
    VectorQuantize vq(sampling);
    leaves_no_trace<c10::ValueError>(
        vq, [&] { vq(x, CallOptions().sample_codebook_temp(value)); },
        "VectorQuantize: expected sample_codebook_temp to be finite");
    ResidualVQ rvq(stack(sampling));
    const auto call = ResidualVQForwardOptions().sample_codebook_temp(value);
    leaves_no_trace<c10::ValueError>(
        rvq, [&] { rvq(x, call); }, "ResidualVQ: expected sample_codebook_temp to be finite");
    GroupedResidualVQ grouped(GroupedResidualVQOptions(kDim).groups(1).rvq(stack(sampling)));
    leaves_no_trace<c10::ValueError>(
        grouped, [&] { grouped(x, call); }, "expected sample_codebook_temp to be finite");
    HierarchicalVQ hvq(HierarchicalVQOptions(kDim, kCodes, {2, 6}).stochastic_sample_codes(true));
    leaves_no_trace<c10::ValueError>(
        hvq,
        [&] { hvq(x.transpose(1, 2), HierarchicalVQForwardOptions().sample_codebook_temp(value)); },
        "HierarchicalVQ: expected sample_codebook_temp to be finite");
  }
}

TEST(RefusedCallsTest, WeightsLeaveNoTrace) {
  const auto x = normal({2, 6, kDim});
  const std::string name = "VectorQuantize: expected ema_update_weight to be ";
  for (const auto& way : {options(), options().kmeans_init(true), options().affine_param(true)}) {
    VectorQuantize vq(way);
    const auto refuse = [&](const torch::Tensor& weight, const std::string& fragment) {
      leaves_no_trace<c10::ValueError>(
          vq, [&] { vq(x, CallOptions().ema_update_weight(weight)); }, name + fragment);
    };
    refuse(at::ones({3}), "of a shape that broadcasts to [1, 8] (H, K), but got shape [3]");
    refuse(at::ones({2, kCodes}), "of a shape that broadcasts");
    refuse(at::ones({1, 1, kCodes}), "of a shape that broadcasts");
    refuse(at::full({kCodes}, kNaN), "finite, but got NaN or infinity");
    vq(x, CallOptions().ema_update_weight(at::ones({kCodes}, at::kLong)));
    EXPECT_TRUE(vq->codebook_state->initialised());
  }
}

TEST(RefusedCallsTest, TransformsLeaveNoTrace) {
  const auto x = normal({2, 6, kDim});
  for (const auto& way : ways_to_learn()) {
    VectorQuantize vq(way);
    const auto shape =
        CallOptions().codebook_transform_fn([](torch::Tensor codes) { return codes; });
    leaves_no_trace<c10::ValueError>(
        vq, [&] { vq(x, shape); },
        "VectorQuantize: expected codebook_transform_fn to return codes of each token");
    EXPECT_EQ(vq->codebook_state->initialised(), !way.kmeans_init());
    vq(x);
    EXPECT_TRUE(vq->codebook_state->initialised());
  }
}

TEST(RefusedCallsTest, GeneratorsOfNoiseDoNotAdvance) {
  const auto x = normal({2, 6, kDim});
  for (const double value : {kNaN, kInfinity, -1.0}) {
    BinaryMapper bits{BinaryMapperOptions(kDim)};
    leaves_no_trace<c10::ValueError>(
        bits, [&] { bits(x, BinaryMapperForwardOptions().temperature(value)); },
        "BinaryMapper: expected temperature to be finite and non-negative");
    leaves_no_trace<c10::ValueError>(
        bits, [&] { bits(x, BinaryMapperForwardOptions().mask(at::ones({2, 5}, at::kBool))); },
        "BinaryMapper: expected mask to have shape [2, 6], but got [2, 5]");
    FSP noise(FSPOptions({4, 4, 4, 4}).need_inv_act(true));
    leaves_no_trace<c10::ValueError>(
        noise, [&] { noise(x, FSPForwardOptions().eps(value)); },
        "FSP: expected eps to be in (0, 1/2)");
  }
}

TEST(RefusedCallsTest, LateRefusalsKeepTheCounts) {
  torch::manual_seed(0);
  // A tensor without data is refused where the codebook learns, after the search.
  const auto x = normal({2, 6, kDim}), none = at::empty({2, 6, kDim}, at::kMeta);
  const auto expect_same = [](const CodebookStats& a, const CodebookStats& b) {
    EXPECT_GT(a.replaced, 0);
    EXPECT_EQ(a.replaced, b.replaced);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.usage, b.usage);
  };
  const auto way = options().threshold_ema_dead_code(2);
  VectorQuantize vq(way);
  vq(x);
  const auto before = vq->stats();
  EXPECT_ANY_THROW(vq(none));
  expect_same(before, vq->stats());
  EXPECT_ANY_THROW(vq(none, CallOptions().accum_ema_update(true)));
  expect_same(before, vq->stats());
  for (const bool in_turn : {false, true}) {
    ResidualVQ rvq(stack(way).implicit_neural_codebook(in_turn));
    rvq(x);
    const auto levels = rvq->stats();
    EXPECT_ANY_THROW(rvq(none));
    expect_same(levels[0], rvq->stats()[0]);
  }
  GroupedResidualVQ grouped(GroupedResidualVQOptions(kDim).groups(1).rvq(stack(way)));
  grouped(x);
  const auto groups = grouped->stats();
  EXPECT_ANY_THROW(grouped(none));
  expect_same(groups[0][0], grouped->stats()[0][0]);
}

TEST(RefusedCallsTest, LateRefusalsOfScalesKeepTheCounts) {
  torch::manual_seed(0);
  HierarchicalVQ hvq(HierarchicalVQOptions(kDim, kCodes, {2, 6})
                         .shared_codebook(false)
                         .threshold_ema_dead_code(2));
  for (int step = 0; step < 3; ++step) hvq(normal({2, kDim, 6}));
  const auto before = hvq->stats();
  EXPECT_GT(before[0].replaced + before[1].replaced, 0);
  EXPECT_ANY_THROW(hvq(at::empty({2, kDim, 6}, at::kMeta)));
  const auto after = hvq->stats();
  for (size_t scale = 0; scale < before.size(); ++scale) {
    EXPECT_EQ(before[scale].replaced, after[scale].replaced);
    EXPECT_EQ(before[scale].tokens, after[scale].tokens);
  }
}

TEST(RefusedCallsTest, InputsWithoutFeaturesAreErrors) {
  VectorQuantize vq(options().channel_last(false));
  for (const auto& x : {torch::tensor(1.F), torch::randn({8})}) {
    leaves_no_trace<c10::ValueError>(
        vq,
        [&] {
          vq->update_ema_indices(x, torch::zeros({1}, torch::kLong),
                                 torch::ones({1}, torch::kBool));
        },
        "expected x to have shape");
  }
}

TEST(RefusedCallsTest, TensorsWithoutDenseValuesLeaveNoTrace) {
  VectorQuantize vq(options());
  auto state = state_dict(*vq);
  state["_codebook.cluster_size"] = state["_codebook.cluster_size"] + 1;
  state["_codebook.embed_avg"] = state["_codebook.embed_avg"].to_sparse();
  leaves_no_trace<c10::ValueError>(
      vq, [&] { load_state_dict(*vq, state); }, "_codebook.embed_avg to be a dense tensor");
}

TEST(RefusedCallsTest, DropoutThatIsSetWrongLater) {
  const auto seeded = ResidualVQForwardOptions().rand_quantize_dropout_fixed_seed(1);
  const auto x = normal({2, 6, kDim});
  for (const auto& call : {ResidualVQForwardOptions(), seeded}) {
    ResidualVQ rvq(stack(options()).quantize_dropout(true));
    rvq->options.quantize_dropout_cutoff_index(2);
    leaves_no_trace<c10::ValueError>(rvq, [&] { rvq->forward(x, call); }, "cutoff_index to be in");
    rvq->options.quantize_dropout_cutoff_index(0).quantize_dropout_multiple_of(0);
    leaves_no_trace<c10::ValueError>(rvq, [&] { rvq->forward(x, call); }, "multiple_of to be");
  }
}

TEST(RefusedCallsTest, WhatAModuleWasNotBuiltFor) {
  const auto x = normal({2, 6, kDim});
  ResidualVQ rvq(stack(options()));
  rvq->eval();
  rvq->options.implicit_neural_codebook(true);
  EXPECT_THROW(rvq->forward(x), std::out_of_range);
  EXPECT_THROW(rvq->get_output_from_indices(torch::zeros({2, 6, 2}, torch::kLong)),
               std::out_of_range);
  ResidualVQ implicit(stack(options()).implicit_neural_codebook(true).eval_beam_size(2));
  implicit->eval();
  implicit->options.beam_score_quantizer_weights(std::vector<double>{1.0});
  expect_throw_with<c10::ValueError>([&] { implicit->forward(x); }, "to have 2 numbers");
  const HierarchicalVQ scales(
      HierarchicalVQOptions(kDim, kCodes, std::vector<int64_t>{1, 2}).shared_codebook(false));
  EXPECT_THROW(scales->get_vq(1000000), std::out_of_range);
  EXPECT_THROW(scales->choose_phi(1000000), std::out_of_range);
  ResidualLFQ signs(ResidualLFQOptions(kDim, 2, 16));
  signs->options.num_quantizers(5);
  EXPECT_THROW(signs->forward(x), std::out_of_range);
  ResidualSimVQ sims(ResidualSimVQOptions(kDim, 2, kCodes));
  sims->options.num_quantizers(5);
  EXPECT_THROW(sims->forward(x), std::out_of_range);
}

TEST(RefusedCallsTest, NoHeadsAreAnError) {
  VectorQuantize vq(options());
  vq->options.heads(0);
  leaves_no_trace<c10::ValueError>(vq, [&] { vq->forward(normal({2, 6, kDim})); }, "at least 1");
  LFQ lfq(LFQOptions().dim(kDim).codebook_size(16));
  lfq->options.num_codebooks(0);
  EXPECT_THROW(lfq->forward(normal({2, 6, kDim})), c10::ValueError);
}

TEST(RefusedCallsTest, ListsOfAnotherLengthThanTheStates) {
  namespace F = functional;
  F::CodebookState state;
  state.embed = at::randn({1, 8, 4});
  state.embed_avg = state.embed.clone();
  state.cluster_size = at::ones({1, 8});
  state.replaced = at::zeros({1}, at::kLong);
  state.rng = at::zeros({2}, at::kLong);
  const F::StepTokens tokens{at::randn({1, 20, 4}), at::randint(8, {1, 20}, at::kLong),
                             std::nullopt};
  const auto options = F::LearnCodebooksOptions().threshold(2).reset_cluster_size(2);
  const auto before = state.embed_avg.clone();
  EXPECT_THROW(F::learn_codebooks_({state}, {tokens, tokens}, options), c10::ValueError);
  EXPECT_THROW(F::learn_codebooks_({state}, {}, options), c10::ValueError);
  EXPECT_THROW(F::learn_codebooks_({}, {tokens}, options), c10::ValueError);
  EXPECT_THROW(F::collect_statistics({state}, {tokens, tokens}, options), c10::ValueError);
  EXPECT_THROW(F::learn_from_statistics_({state}, {tokens}, {}, options), c10::ValueError);
  EXPECT_THROW(F::expire_codes_({state, state}, {tokens.x}, options), c10::ValueError);
  EXPECT_THROW(F::expire_codes_({state}, {tokens.x, tokens.x}, options), c10::ValueError);
  EXPECT_TRUE(at::equal(state.embed_avg, before));
}

TEST(RefusedCallsTest, OptionsThatAreSetWrongLaterLeaveNoTrace) {
  const auto x = normal({2, 40, kDim});
  const std::vector<std::function<void(VectorQuantizeImpl&)>> changes{
      [](auto& module) { module.codebook_state->options.decay(2); },
      [](auto& module) { module.codebook_state->options.eps(-1); },
      [](auto& module) { module.options.sync_update_v(-1); }};
  for (const auto& how : {options().kmeans_init(true), options().affine_param(true)}) {
    for (const auto& change : changes) {
      VectorQuantize module(how);
      change(*module);
      leaves_no_trace<c10::ValueError>(module, [&] { module(x); }, "expected");
      ResidualVQ rvq(stack(how));
      for (auto& level : rvq->levels) change(*level);
      leaves_no_trace<c10::ValueError>(rvq, [&] { rvq(x); }, "expected");
      GroupedResidualVQ grouped(GroupedResidualVQOptions(2 * kDim).groups(2).rvq(stack(how)));
      change(*grouped->rvqs[1]->levels[1]);
      leaves_no_trace<c10::ValueError>(
          grouped, [&] { grouped(torch::cat({x, x}, -1)); }, "expected");
    }
  }
}

TEST(RefusedCallsTest, OptionsOfTheLastLevelAreCheckedBeforeTheFirstLearns) {
  const auto x = normal({2, 40, kDim});
  const std::vector<std::function<void(VectorQuantizeImpl&)>> changes{
      [](auto& level) { level.codebook_state->options.decay(2); },
      [](auto& level) { level.codebook_state->options.eps(-1); },
      [](auto& level) { level.codebook_state->options.threshold_ema_dead_code(kNaN); },
      [](auto& level) { level.codebook_state->options.dead_code_threshold_fraction(-1); },
      [](auto& level) { level.options.orthogonal_reg_max_codes(0).orthogonal_reg_weight(0.1); },
      [](auto& level) {
        level.options.sample_codebook_temp(kInfinity).stochastic_sample_codes(true);
      }};
  for (const auto& how : {options(), options().threshold_ema_dead_code(1),
                          options().kmeans_init(true), options().affine_param(true)}) {
    for (const auto& change : changes) {
      ResidualVQ rvq(stack(how));
      change(*rvq->levels[1]);
      leaves_no_trace<c10::ValueError>(rvq, [&] { rvq(x); }, "expected");
      GroupedResidualVQ grouped(GroupedResidualVQOptions(2 * kDim).groups(2).rvq(stack(how)));
      change(*grouped->rvqs[1]->levels[1]);
      leaves_no_trace<c10::ValueError>(
          grouped, [&] { grouped(torch::cat({x, x}, -1)); }, "expected");
      HierarchicalVQ hvq(HierarchicalVQOptions(kDim, kCodes, {2, 6})
                             .shared_codebook(false)
                             .channel_first(false)
                             .kmeans_init(how.kmeans_init()));
      change(*hvq->vqs[1]);
      leaves_no_trace<c10::ValueError>(hvq, [&] { hvq(x); }, "expected");
    }
  }
}

TEST(RefusedCallsTest, AnotherNumberOfStepsPerUpdateIsSetAtConstruction) {
  const auto x = normal({2, 40, kDim});
  for (const auto& how : {options().kmeans_init(true), options().affine_param(true)}) {
    VectorQuantize module(how);
    module->codebook_state->options.sync_every(3);
    leaves_no_trace<c10::ValueError>(
        module, [&] { module(x); },
        "VectorQuantize: expected sync_every to be 1 as at construction, which makes the state for "
        "more, but got 3");
  }
  // Fewer steps than at construction need no state.
  VectorQuantize module(options().sync_every(3)), plain(options());
  module->set_codebook(plain->codebook());
  plain->set_codebook(plain->codebook());
  module->codebook_state->options.sync_every(1);
  module(x);
  plain(x);
  EXPECT_TRUE(at::equal(module->codebook(), plain->codebook()));
}

TEST(RefusedCallsTest, CodesOfAnotherShape) {
  const auto x = normal({2, 40, kDim});
  for (const auto& how : ways_to_learn()) {
    for (const bool training : {true, false}) {
      VectorQuantize module(how);
      module->train(training);
      const auto codes = normal({kCodes, kDim});
      module->codebook_state->embed.set_data(codes);
      const std::string refusal =
          "VectorQuantize: expected embed to have the shape (heads, codebook_size, dim), [1, 8, "
          "4], but got [8, 4]; call set_codebook() to replace codes";
      leaves_no_trace<c10::ValueError>(module, [&] { module(x); }, refusal);
      leaves_no_trace<c10::ValueError>(
          module, [&] { module->get_output_from_indices(at::zeros({2}, at::kLong)); }, refusal);
      module->set_codebook(codes);
      EXPECT_TRUE(at::equal(module->codebook_state->embed[0], codes));
      EXPECT_NO_THROW(module(x));
    }
  }
  VectorQuantize heads(options().heads(2).codebook_dim(2).separate_codebook_per_head(true));
  heads->eval();
  heads->codebook_state->embed.set_data(normal({1, kCodes, 2}));
  leaves_no_trace<c10::ValueError>(heads, [&] { heads(x); }, "[2, 8, 2], but got [1, 8, 2]");
  ResidualVQ rvq(stack(options()));
  rvq->levels[1]->codebook_state->embed.set_data(normal({kCodes, kDim}));
  for (const bool training : {true, false}) {
    rvq->train(training);
    leaves_no_trace<c10::ValueError>(rvq, [&] { rvq(x); }, "[1, 8, 4], but got [8, 4]");
  }
  // Evaluation takes any number of codes, but training needs their averages.
  VectorQuantize more(options());
  more->codebook_state->embed.set_data(normal({1, 2 * kCodes, kDim}));
  leaves_no_trace<c10::ValueError>(more, [&] { more(x); }, "[1, 8, 4], but got [1, 16, 4]");
  more->eval();
  const auto found = more(x).indices.flatten();
  const auto codes = more->codebook_state->embed[0];
  EXPECT_TRUE(at::equal(found, brute_force(x.flatten(0, 1), codes)));
}

TEST(RefusedCallsTest, OtherCodesAreNotAssigned) {
  VectorQuantize module(options().kmeans_init(true));
  const auto ones = torch::ones({kCodes, kDim});
  for (const auto& wrong : {ones * kNaN, ones * kInfinity, ones.to(torch::kDouble) * 1e300})
    leaves_no_trace<c10::ValueError>(module, [&] { module->set_codebook(wrong); }, "finite");
  for (const auto dtype : {torch::kBool, torch::kComplexFloat}) {
    leaves_no_trace<c10::TypeError>(
        module, [&] { module->set_codebook(ones.to(dtype)); }, "real numbers");
  }
}

TEST(RefusedCallsTest, LogitsOfOtherDtypesDrawNothing) {
  BinaryMapper module(BinaryMapperOptions(6));
  const auto logits = normal({2, 8, 6}).to(torch::kFloat8_e4m3fn);
  for (const bool training : {true, false}) {
    module->train(training);
    leaves_no_trace<c10::TypeError>(
        module, [&] { module(logits); },
        "BinaryMapper: expected logits to be float16, bfloat16, float32 or float64, but got");
  }
}

TEST(RefusedCallsTest, TokensInEightBitsLeaveNoTrace) {
  const auto x = normal({2, 6, kDim}).to(torch::kFloat8_e4m3fn);
  const auto refuse = [&](auto module, const std::string& owner) {
    leaves_no_trace<c10::TypeError>(
        module, [&] { module(x); },
        owner + ": expected x to be float16, bfloat16, float32 or float64, but got");
  };
  for (const auto& way : ways_to_learn()) {
    refuse(VectorQuantize(way), "VectorQuantize");
    refuse(ResidualVQ(stack(way)), "ResidualVQ");
  }
}

TEST(RefusedCallsTest, AMaskOnAnotherDeviceDrawsNothing) {
  BinaryMapper module(BinaryMapperOptions(6));
  const auto mask = torch::ones({2, 8}, torch::dtype(torch::kBool).device(torch::kMeta));
  leaves_no_trace<c10::Error>(
      module, [&] { module(normal({2, 8, 6}), BinaryMapperForwardOptions().mask(mask)); },
      "BinaryMapper: expected logits and mask to be on the same device");
}

TEST(RefusedCallsTest, AStepThatFailsLeavesTheAccumulatedStatistics) {
  const auto build = [] {
    return make(options().learnable_codebook(true).in_place_codebook_optimizer(sgd).vq_bridge(
        torch::nn::AnyModule(FragileBridge())));
  };
  auto module = build(), other = build();
  other->codebook_state->rng.copy_(module->codebook_state->rng);
  const auto accumulate = CallOptions().accum_ema_update(true);
  for (auto* own : {&module, &other}) (*own)(normal({2, 6, kDim}, 3), accumulate);
  const auto before = state_of(module);
  FragileBridge::Impl::calls = 1;  // fails in the search whose codes are returned
  EXPECT_THROW(module(normal({2, 6, kDim}, 4), accumulate), std::runtime_error);
  FragileBridge::Impl::calls = FragileBridge::Impl::kNever;
  expect_same_state(state_of(module), before);
  for (auto* own : {&module, &other}) (*own)(normal({2, 6, kDim}, 5));
  expect_same_state(state_of(module), state_of(other));
}

TEST(RefusedCallsTest, MasksOfItemsAreDense) {
  const auto x = normal({2, 6, kDim});
  const auto sparse = torch::ones({2, 6}, torch::kBool).to_sparse();
  const std::string fragment = ": expected mask to be a dense tensor, but got layout Sparse";
  LFQ lfq(LFQOptions().dim(kDim).codebook_size(16).commitment_loss_weight(1));
  leaves_no_trace<c10::TypeError>(lfq, [&] { lfq(x, 100.0, sparse); }, "LFQ" + fragment);
  ResidualFSQ rfsq(ResidualFSQOptions({5, 4}, 2).dim(kDim));
  leaves_no_trace<c10::TypeError>(
      rfsq, [&] { rfsq(x, ResidualFSQForwardOptions().mask(sparse)); }, "ResidualFSQ" + fragment);
  LatentQuantize latent(LatentQuantizeOptions({5, 4}, 2));
  leaves_no_trace<c10::TypeError>(
      latent, [&] { latent->codes_to_indices(torch::Tensor()); },
      "LatentQuantize: expected zhat to be a tensor, but got an undefined one");
}

}  // namespace
}  // namespace torchvq::refused_calls_test
