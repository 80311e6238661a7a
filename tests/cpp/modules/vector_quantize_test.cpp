#include "modules/vector_quantize_support.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>
#include <torch/optim/sgd.h>

#include "expect_throw.h"

namespace torchvq::vector_quantize_test {
namespace {

using namespace torchvq::testing;

constexpr int64_t kDim = 8;
constexpr int64_t kCodes = 16;

Options options() { return Options(kDim).codebook_size(kCodes); }

// Forward -----------------------------------------------------------------------------------------

TEST(VectorQuantizeTest, AWriteToTheLossLeavesItsTerms) {
  for (const bool training : {true, false}) {
    auto vq = make(options().commitment_weight(0));
    vq->train(training);
    const auto output = vq(normal({2, 5, kDim}));
    const at::NoGradGuard no_grad;
    output.loss.add_(1);
    const auto& [commitment, diversity, orthogonal, in_place] = output.loss_breakdown;
    for (const auto& term : {commitment, diversity, orthogonal, in_place}) {
      EXPECT_EQ(term.item<float>(), 0);
      term.add_(1);
    }
  }
}

TEST(VectorQuantizeTest, BuilderKeepsWhatItIsGiven) {
  const auto built = Options(4).codebook_size(7).decay(0.9).heads(2).rotation_trick(false);
  EXPECT_EQ(built.dim(), 4);
  EXPECT_EQ(built.codebook_size(), 7);
  EXPECT_EQ(built.decay(), 0.9);
  EXPECT_FALSE(built.validate().rotation_trick);
  EXPECT_TRUE(built.validate().ema_update);
  EXPECT_FALSE(Options(1).validate().rotation_trick);
  EXPECT_TRUE(Options(2).validate().rotation_trick);
}

TEST(VectorQuantizeTest, EvaluationTakesTheNearestCodeAndChangesNothing) {
  auto module = make(options());
  module->eval();
  const auto before = state_of(module);
  const auto x = normal({3, 5, kDim});
  const auto output = module(x);
  const auto expected = brute_force(x.flatten(0, 1), module->codebook());
  EXPECT_TRUE(at::equal(output.indices.flatten(), expected));
  EXPECT_TRUE(at::equal(output.quantized.flatten(0, 1), module->codebook().index({expected})));
  EXPECT_EQ(output.loss.item<float>(), 0);
  EXPECT_FALSE(output.loss.requires_grad());
  expect_same_state(state_of(module), before);
}

TEST(VectorQuantizeTest, TrainingFollowsTheMovingAverageByHand) {
  auto module = make(options().decay(0.5).commitment_weight(2).rotation_trick(false));
  const auto codes = module->codebook().clone();
  const auto x = normal({1, 40, kDim}).requires_grad_();
  const auto output = module(x);
  const auto mean = (x - output.quantized.detach()).square().mean();
  EXPECT_TRUE(at::allclose(output.loss, 2 * mean));
  EXPECT_TRUE(at::allclose(output.loss_breakdown.commitment, mean));
  const auto chosen = at::one_hot(output.indices[0], kCodes).to(at::kFloat);
  const auto counts = chosen.sum(0) * 0.5 + 0.5;
  EXPECT_TRUE(at::allclose(module->codebook_state->cluster_size[0], counts));
  const auto average = codes * 0.5 + chosen.t().mm(x[0].detach()) * 0.5;
  EXPECT_TRUE(at::allclose(module->codebook_state->embed_avg[0], average, 1e-4, 1e-6));
  output.quantized.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
}

TEST(VectorQuantizeTest, EveryLayoutReturnsItsOwnShapesAndDecodesItsIndices) {
  struct Case {
    Options options;
    std::vector<int64_t> input, indices;
  };
  const auto heads = options().heads(2).codebook_dim(4);
  const auto projected = options().heads(2).codebook_dim(3).separate_codebook_per_head(true);
  const std::vector<Case> cases = {
      {options(), {3, 5, kDim}, {3, 5}},
      {options(), {3, kDim}, {3}},
      {options(), {3, 2, 4, kDim}, {3, 2, 4}},
      {options().channel_last(false), {3, kDim, 5}, {3, 5}},
      {options().accept_image_fmap(true), {3, kDim, 4, 5}, {3, 4, 5}},
      {options().accept_3d_fmap(true), {3, kDim, 2, 4, 5}, {3, 2, 4, 5}},
      {options().use_cosine_sim(true), {3, 5, kDim}, {3, 5}},
      {heads, {3, 5, kDim}, {3, 5, 2}},
      {Options(heads).separate_codebook_per_head(true), {3, 5, kDim}, {3, 5, 2}},
      {projected, {3, 5, kDim}, {3, 5, 2}},
      {Options(projected).accept_image_fmap(true), {3, kDim, 4, 5}, {3, 4, 5, 2}},
      {options().codebook_dim(3).layernorm_after_project_in(true), {3, 5, kDim}, {3, 5}},
      {options().affine_param(true), {3, 5, kDim}, {3, 5}},
      {options(), {0, 5, kDim}, {0, 5}},
  };
  for (const auto& layout : cases) {
    auto module = make(layout.options);
    const auto x = normal(layout.input);
    module(x);
    module->eval();
    const auto output = module(x);
    EXPECT_EQ(output.quantized.sizes(), at::IntArrayRef(layout.input));
    EXPECT_EQ(output.indices.sizes(), at::IntArrayRef(layout.indices));
    EXPECT_TRUE(at::equal(module->get_output_from_indices(output.indices), output.quantized));
  }
}

TEST(VectorQuantizeTest, MaskEqualsTheSelectionOfRealTokens) {
  const auto x = normal({2, 6, kDim});
  const auto lens = torch::tensor({6, 2}, at::kLong);
  const auto mask = at::arange(6).unsqueeze(0) < lens.unsqueeze(1);
  auto padded = x.clone();
  padded.masked_fill_(mask.logical_not().unsqueeze(-1), std::numeric_limits<float>::quiet_NaN());

  auto by_mask = make(options()), by_lens = make(options()), selected = make(options());
  const auto masked = by_mask(padded, CallOptions().mask(mask));
  const auto lengths = by_lens(padded, CallOptions().lens(lens));
  const auto expected = selected(x.index({mask}).unsqueeze(0));
  EXPECT_TRUE(at::allclose(masked.loss, expected.loss));
  EXPECT_TRUE(at::equal(masked.loss, lengths.loss));
  EXPECT_TRUE(at::equal(masked.indices.index({mask}), expected.indices[0]));
  EXPECT_TRUE(masked.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  EXPECT_TRUE(masked.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
  EXPECT_TRUE(at::equal(by_mask->codebook(), selected->codebook()));
  EXPECT_TRUE(at::equal(by_lens->codebook(), selected->codebook()));
}

TEST(VectorQuantizeTest, NothingRealGivesNoLossAndLeavesTheState) {
  auto module = make(options().threshold_ema_dead_code(2).kmeans_init(true).affine_param(true));
  const auto before = state_of(module);
  const auto x = normal({2, 6, kDim});
  const auto output = module(x, CallOptions().mask(at::zeros({2, 6}, at::kBool)));
  EXPECT_EQ(output.loss.item<float>(), 0);
  EXPECT_EQ(module(x.slice(1, 0, 0)).loss.item<float>(), 0);
  expect_same_state(state_of(module), before);
}

TEST(VectorQuantizeTest, NonFiniteTokensStayOutOfTheCodebook) {
  auto module = make(options()), clean = make(options());
  auto x = normal({1, 6, kDim});
  clean(x.slice(1, 1));
  x[0][0].fill_(std::numeric_limits<float>::infinity());
  const auto output = module(x);
  EXPECT_TRUE(output.quantized[0][0].isnan().all().item<bool>());
  EXPECT_EQ(output.indices[0][0].item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(module->codebook(), clean->codebook()));
}

TEST(VectorQuantizeTest, TopkReturnsCandidatesInOrder) {
  auto module = make(options());
  const auto before = state_of(module);
  const auto x = normal({2, 5, kDim});
  const auto output = module(x, CallOptions().topk(3));
  EXPECT_EQ(output.quantized.sizes(), at::IntArrayRef({2, 5, 3, kDim}));
  EXPECT_EQ(output.loss.sizes(), at::IntArrayRef({2, 5, 3}));
  const auto distances = at::cdist(x.flatten(0, 1), module->codebook());
  const auto expected = std::get<1>(distances.topk(3, -1, /*largest=*/false));
  EXPECT_TRUE(at::equal(output.indices.flatten(0, 1), expected));
  EXPECT_TRUE(at::equal(module->codebook(), before.at("_codebook.embed")[0]));
  EXPECT_EQ(module(x, CallOptions().topk(1000)).indices.size(-1), kCodes);
}

TEST(VectorQuantizeTest, CandidatesInEvaluationAreRankedByLossesWithoutAGradient) {
  const auto learnable = options().learnable_codebook(true).ema_update(false);
  for (const auto& given : {learnable, options().commitment_weight(0)}) {
    auto module = make(given);
    module->eval();
    const auto x = normal({2, 5, kDim}).requires_grad_();
    const auto output = module(x, CallOptions().topk(3));
    const auto distances = x.unsqueeze(2) - module->get_codes_from_indices(output.indices);
    EXPECT_TRUE(at::allclose(output.loss, distances.square().mean(-1)));
    EXPECT_FALSE(output.loss.requires_grad());
    EXPECT_FALSE(output.loss_breakdown.commitment.requires_grad());
    module->train();
    EXPECT_TRUE(module(x, CallOptions().topk(3)).loss.requires_grad());
  }
}

TEST(VectorQuantizeTest, EvaluationReplacesNoDeadCodes) {
  auto module = make(options().threshold_ema_dead_code(2));
  const auto x = normal({1, 40, kDim});
  module->eval();
  auto before = state_of(module);
  module->expire_codes_(x);
  expect_same_state(state_of(module), before);
  module->train();
  module->expire_codes_(x);
  EXPECT_FALSE(at::equal(module->codebook(), before.at("_codebook.embed")[0]));
  auto without = make(options());
  before = state_of(without);
  without->expire_codes_(x);
  expect_same_state(state_of(without), before);
}

TEST(VectorQuantizeTest, CandidatesAreTheActiveCodesOfTheOrthogonalLoss) {
  auto module = make(options().orthogonal_reg_weight(2).orthogonal_reg_active_codes_only(true));
  const auto output = module(normal({1, 2, kDim}), CallOptions().topk(3));
  const auto active = std::get<0>(at::_unique(output.indices));
  const auto codes = module->codebook().index({active}).to(at::kDouble);
  const auto unit = codes / codes.norm(2, -1, true);
  const auto expected = unit.matmul(unit.t()).square().mean().item<double>() -
                        1 / static_cast<double>(active.size(0));
  const auto& [quantized, indices, loss, terms] = output;
  EXPECT_NEAR(terms.orthogonal_reg.item<double>(), expected, 1e-6);
  EXPECT_TRUE(at::allclose(loss, terms.commitment + 2 * terms.orthogonal_reg));
}

TEST(VectorQuantizeTest, TargetsAreScoredByCrossEntropyInEvaluationToo) {
  auto module = make(options());
  module->eval();
  const auto x = normal({2, 5, kDim});
  auto targets = at::arange(10).reshape({2, 5}).to(at::kLong);
  targets[0][0] = -1;
  const auto output = module(x, CallOptions().indices(targets));
  const auto logits = -at::cdist(x.flatten(0, 1), module->codebook());
  namespace nnf = torch::nn::functional;
  const auto expected = nnf::cross_entropy(logits, targets.flatten(),
                                           nnf::CrossEntropyFuncOptions().ignore_index(-1));
  EXPECT_TRUE(at::allclose(output.loss, expected, 1e-4));
}

// Learning ----------------------------------------------------------------------------------------

TEST(VectorQuantizeTest, KmeansInitialisesFromTheFirstTrainingTokens) {
  auto module = make(options().kmeans_init(true));
  EXPECT_FALSE(module->codebook_state->initialised());
  module->eval();
  module(normal({2, 60, kDim}));
  EXPECT_FALSE(module->codebook_state->initialised());
  module->train();
  const auto first = module(normal({2, 60, kDim}));
  EXPECT_TRUE(module->codebook_state->initialised());
  EXPECT_LT(first.loss.item<float>(), make(options())(normal({2, 60, kDim})).loss.item<float>());
}

TEST(VectorQuantizeTest, AffineStatisticsMoveTowardsTheData) {
  auto module = make(options().affine_param(true).affine_param_batch_decay(0.5));
  const auto x = normal({1, 400, kDim}) * 3 + 5;
  module(x);
  const auto mean = x.flatten(0, 1).mean(0);
  EXPECT_TRUE(at::allclose(module->codebook_state->batch_mean.flatten(), mean, 1e-4));
  EXPECT_FALSE(module->codebook_state->batch_mean_needs_init.item<bool>());
  EXPECT_TRUE(at::allclose(module->codebook().mean(0), mean, 0.3, 1.5));
}

TEST(VectorQuantizeTest, SamplingDependsOnSeedAndStepAlone) {
  auto module = make(options().stochastic_sample_codes(true).freeze_codebook(true));
  auto copy = std::dynamic_pointer_cast<VectorQuantizeImpl>(module->clone());
  const auto x = normal({2, 50, kDim});
  const auto first = module(x).indices, second = module(x).indices;
  EXPECT_FALSE(at::equal(first, second));
  EXPECT_TRUE(at::equal(copy->forward(x).indices, first));
  const auto cold = module(x, CallOptions().sample_codebook_temp(0)).indices;
  EXPECT_TRUE(at::equal(cold.flatten(), brute_force(x.flatten(0, 1), module->codebook())));
}

TEST(VectorQuantizeTest, LearnableCodesAreParametersThatTheLossPulls) {
  auto module = make(options().learnable_codebook(true).ema_update(false));
  EXPECT_TRUE(module->named_parameters().contains("_codebook.embed"));
  const auto x = normal({1, 50, kDim});
  torch::optim::SGD optimizer(module->parameters(), 5.0);
  const auto before = module(x).loss.item<float>();
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    module(x).loss.backward();
    optimizer.step();
  }
  EXPECT_LT(module(x).loss.item<float>(), before);
}

TEST(VectorQuantizeTest, CompatibleProjectionsGetTheGumbelGradientOfInputsWithoutOne) {
  auto module = make(options()
                         .codebook_dim(4)
                         .straight_through(true)
                         .rotation_trick(false)
                         .freeze_codebook(true)
                         .vqp_compat(true));
  const auto x = normal({2, 5, kDim}), weight = normal({2, 5, kDim}, 2);
  auto& learnt = module->project_in->weight;
  (module(x).quantized * weight).sum().backward();
  const auto found = learnt.grad().clone();
  learnt.mutable_grad().reset();
  const auto codes = module->codebook();
  const auto logits = -(module->project_in(x).unsqueeze(-2) - codes).norm(2, -1);
  (module->project_out(logits.softmax(-1).matmul(codes)) * weight).sum().backward();
  EXPECT_TRUE(at::allclose(found, learnt.grad(), 1e-4, 1e-5));
}

TEST(VectorQuantizeTest, RegularisedCodesGetTheGradientOfTheirLikeness) {
  auto module = make(options().orthogonal_reg_weight(3));
  const auto output = module(normal({1, 50, kDim}));
  const auto unit = torch::nn::functional::normalize(module->codebook().detach());
  const auto likeness = unit.mm(unit.t()).square().sum() / (kCodes * kCodes) - 1.0 / kCodes;
  EXPECT_TRUE(at::allclose(output.loss_breakdown.orthogonal_reg, likeness, 1e-4));
  const auto& terms = output.loss_breakdown;
  EXPECT_TRUE(at::allclose(output.loss, terms.commitment + 3 * terms.orthogonal_reg));
  output.loss.backward();
  EXPECT_GT(module->codebook_state->embed.grad().abs().sum().item<float>(), 0);
}

TEST(VectorQuantizeTest, DiversityIsMinusTheEntropyOfTheMeanDistribution) {
  auto module =
      make(options().codebook_diversity_loss_weight(0.5).codebook_diversity_temperature(2));
  const auto x = normal({2, 30, kDim});
  const auto codes = module->codebook().clone();
  const auto output = module(x);
  const auto mean = (at::cdist(x.flatten(0, 1), codes) * -2).softmax(-1).mean(0);
  EXPECT_TRUE(
      at::allclose(output.loss_breakdown.codebook_diversity, (mean * mean.log()).sum(), 1e-4));
}

TEST(VectorQuantizeTest, ManualUpdateWaitsForItsCall) {
  auto manual = make(options().manual_ema_update(true)), plain = make(options());
  const auto x = normal({1, 50, kDim});
  const auto before = manual->codebook().clone();
  manual(x);
  plain(x);
  EXPECT_TRUE(at::equal(manual->codebook(), before));
  manual->codebook_state->update_ema();
  EXPECT_TRUE(at::allclose(manual->codebook(), plain->codebook()));
}

TEST(VectorQuantizeTest, AccumulatedCallsCountAsOneBatch) {
  auto halves = make(options()), whole = make(options());
  const auto x = normal({2, 50, kDim});
  halves(x.slice(0, 0, 1), CallOptions().accum_ema_update(true));
  halves(x.slice(0, 1, 2));
  whole(x);
  EXPECT_TRUE(at::equal(halves->codebook(), whole->codebook()));
}

TEST(VectorQuantizeTest, StepsThatLearnTogetherCountAsOneBatch) {
  auto parts = make(options().sync_every(2).threshold_ema_dead_code(1));
  auto whole = make(options().threshold_ema_dead_code(1));
  // Equal generators, so that dead codes of both draw the same tokens.
  parts->codebook_state->rng.copy_(whole->codebook_state->rng);
  for (int window = 0; window < 4; ++window) {
    const auto x = normal({2, 50, kDim}, window);
    const auto before = parts->codebook().clone();
    parts(x.slice(0, 0, 1));
    EXPECT_TRUE(at::equal(parts->codebook(), before));
    parts(x.slice(0, 1, 2));
    whole(x);
    EXPECT_TRUE(at::equal(parts->codebook(), whole->codebook()));
    EXPECT_TRUE(
        at::equal(parts->codebook_state->cluster_size, whole->codebook_state->cluster_size));
  }
}

TEST(VectorQuantizeTest, RefusesToOverlap) {
  EXPECT_THROW(make(options().overlap_sync(true)), c10::ValueError);
}

TEST(VectorQuantizeTest, AccumulatedCallsAreOneOfTheStepsThatLearnTogether) {
  auto parts = make(options().sync_every(2)), whole = make(options().sync_every(2));
  for (int step = 0; step < 4; ++step) {
    const auto x = normal({2, 50, kDim}, step);
    parts(x.slice(0, 0, 1), CallOptions().accum_ema_update(true));
    parts(x.slice(0, 1, 2));
    whole(x);
    EXPECT_TRUE(at::equal(parts->codebook(), whole->codebook()));
  }
}

TEST(VectorQuantizeTest, WeightsOfTheUpdateMayHaveAnyDtype) {
  auto module = make(options()), plain = make(options());
  const auto x = normal({1, 50, kDim});
  const auto before = plain->codebook().clone();
  module(x, CallOptions().ema_update_weight(at::ones({kCodes}, at::kDouble)));
  plain(x);
  EXPECT_TRUE(at::equal(module->codebook(), plain->codebook()));
  auto still = make(options());
  still(x, CallOptions().ema_update_weight(at::scalar_tensor(0, at::kLong)));
  EXPECT_TRUE(at::allclose(still->codebook_state->embed_avg[0], before));
}

TEST(VectorQuantizeTest, AThousandStepsLowerTheError) {
  auto module = make(options().threshold_ema_dead_code(1));
  const auto centres = normal({kCodes, kDim}, 5) * 4;
  float first = 0, last = 0;
  for (int step = 0; step < 1000; ++step) {
    const auto which = at::randint(kCodes, {64}, at::detail::createCPUGenerator(step), at::kLong);
    const auto x = centres.index({which}) + normal({64, kDim}, step) * 0.1;
    last = module(x.unsqueeze(0)).loss.item<float>();
    first = step == 0 ? last : first;
  }
  EXPECT_LT(last, 0.02);
  EXPECT_GT(first, 1);
  for (const auto& [name, value] : state_of(module)) {
    EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
  }
}

// Errors ------------------------------------------------------------------------------------------

TEST(VectorQuantizeTest, WrongOptionsAreNamed) {
  const auto refuse = [](const Options& wrong, const std::string& fragment) {
    expect_throw_with<c10::ValueError>([&] { VectorQuantize module(wrong); }, fragment);
  };
  refuse(Options(0), "VectorQuantize: expected dim to be at least 1, but got 0");
  refuse(options().decay(1.2), "expected decay to be in [0, 1], but got 1.2");
  refuse(options().heads(0), "expected heads to be at least 1");
  refuse(options().eps(0), "expected eps to be above 0");
  refuse(options().accept_image_fmap(true).accept_3d_fmap(true), "accept_3d_fmap, but got both");
  refuse(options().learnable_codebook(true), "pass ema_update=False");
  refuse(options().directional_reparam(true), "above 0 with directional_reparam, but got 0");
  refuse(options().sync_update_v(0.5), "sync_update_v to be 0 without learnable_codebook");
}

TEST(VectorQuantizeTest, WrongCallsAreNamedAndLeaveTheState) {
  auto module = make(options().kmeans_init(true).threshold_ema_dead_code(1));
  module(normal({1, 50, kDim}));
  const auto before = state_of(module);
  const auto x = normal({2, 6, kDim});
  const auto refuse = [&]<typename Error>(std::type_identity<Error>, const torch::Tensor& input,
                                          const CallOptions& call, const std::string& fragment) {
    expect_throw_with<Error>([&] { module(input, call); }, fragment);
  };
  const std::type_identity<c10::ValueError> value;
  const std::type_identity<c10::TypeError> type;
  refuse(value, normal({2, 6, 7}), {}, "expected x to have 8 features (dim)");
  refuse(value, normal({kDim}), {}, "expected x to have shape (B, *, dim)");
  refuse(type, x.to(at::kLong), {}, "x");
  refuse(type, x, CallOptions().mask(at::ones({2, 6})), "expected mask to be");
  refuse(value, x, CallOptions().mask(at::ones({2, 5}, at::kBool)), "expected mask to have shape");
  refuse(value, x, CallOptions().lens(torch::tensor({1, 2, 3})), "expected lens");
  refuse(value, x, CallOptions().lens(torch::tensor({1, 2})).mask(at::ones({2, 6}, at::kBool)),
         "but got both");
  refuse(value, x, CallOptions().topk(0), "expected topk to be at least 1");
  refuse(std::type_identity<c10::IndexError>(), x,
         CallOptions().indices(at::full({2, 6}, kCodes, at::kLong)), "");
  expect_throw_with<c10::ValueError>([&] { module->set_codebook(normal({3, kDim})); },
                                     "expected codebook to have shape");
  expect_throw_with<c10::IndexError>(
      [&] { module->get_codes_from_indices(at::full({1}, kCodes, at::kLong)); }, "");
  expect_same_state(state_of(module), before);
}

TEST(VectorQuantizeTest, OptionsWithADefaultAreThoseOfTheCall) {
  auto module = make(options());
  module->options.ema_update(false).rotation_trick(false);
  EXPECT_FALSE(module->resolved().rotation_trick);
  const auto before = module->codebook().clone();
  const auto x = normal({1, 30, kDim});
  module(x);
  module->update_ema_indices(x, at::zeros({1, 30}, at::kLong));
  EXPECT_TRUE(at::equal(module->codebook(), before));
  module->options.ema_update(true);
  module(x);
  EXPECT_FALSE(at::equal(module->codebook(), before));
}

TEST(VectorQuantizeTest, GivenIndicesReplaceDeadCodesInTrainingAlone) {
  const auto x = normal({1, 60, kDim});
  const auto indices = at::arange(60, at::kLong).remainder(5).unsqueeze(0);
  for (const bool training : {false, true}) {
    VectorQuantize module(options().threshold_ema_dead_code(2));
    module->train(training);
    const auto before = module->codebook().clone();
    module->update_ema_indices(x, indices);
    const auto moved = module->codebook().sub(before).abs().amax(-1);
    EXPECT_TRUE(moved.slice(0, 0, 5).gt(0.01).all().item<bool>());
    EXPECT_EQ(moved.slice(0, 5).gt(1e-4).all().item<bool>(), training);
    EXPECT_EQ(moved.slice(0, 5).gt(1e-4).any().item<bool>(), training);
  }
}

TEST(VectorQuantizeTest, LearningOutsideOfForwardCountsItsOwnReplacements) {
  const auto x = normal({1, 60, kDim});
  const auto zeros = at::zeros({1, 60}, at::kLong);
  VectorQuantize module(options().threshold_ema_dead_code(0.5).decay(0.1));
  const auto& codebook = module->codebook_state;
  for (int64_t step = 1; step <= 3; ++step) {
    codebook->cluster_size.zero_();
    module->update_ema_indices(x, zeros);
    EXPECT_EQ(module->stats().replaced, kCodes - 1);
    codebook->cluster_size.zero_();
    module->expire_codes_(x);
    EXPECT_EQ(module->stats().replaced, kCodes);
    EXPECT_EQ(codebook->rng[1].item<int64_t>(), 2 * step);
  }
  EXPECT_THROW(module->update_ema_indices(x, zeros.t()), c10::ValueError);
}

}  // namespace
}  // namespace torchvq::vector_quantize_test
