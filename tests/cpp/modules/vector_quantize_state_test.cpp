// State of the VectorQuantize module: names, checkpoints, casts.
#include <set>
#include <sstream>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <torchvq/io/safetensors.h>

#include "expect_throw.h"
#include "modules/vector_quantize_resumed.h"

namespace torchvq::vector_quantize_state_test {
namespace {

using namespace torchvq::testing;
using resumed::another, resumed::Bridge, resumed::configurations, resumed::expect_continues_alike;
using resumed::in_place, resumed::kDim, resumed::options, resumed::train;
using resumed::with_adam;

TEST(VectorQuantizeStateTest, NamesAreThoseOfPython) {
  const auto names = [](const Options& given) {
    auto module = make(given);
    train(module, 0, 1);
    std::set<std::string> result;
    for (const auto& [name, value] : state_dict(*module)) result.insert(name);
    return result;
  };
  const std::set<std::string> plain = {"_codebook.cluster_size", "_codebook.embed",
                                       "_codebook.embed_avg", "_codebook.initted", "_codebook.rng"};
  EXPECT_EQ(names(options()), plain);
  EXPECT_TRUE(names(options().affine_param(true)).contains("_codebook.batch_mean_needs_init"));
  const auto norm = names(configurations().at("norm"));
  for (const auto* name : {"project_in.0.weight", "project_in.1.bias", "project_out.weight"}) {
    EXPECT_TRUE(norm.contains(name)) << name;
  }
  EXPECT_TRUE(names(configurations().at("projected")).contains("project_in.weight"));
  EXPECT_TRUE(names(configurations().at("bridge")).contains("_codebook.vq_bridge.linear.weight"));
  const auto adam = names(with_adam());
  for (const auto* name : {"step", "exp_avg", "exp_avg_sq"}) {
    EXPECT_TRUE(adam.contains(std::string("in_place_codebook_optimizer.0.") + name)) << name;
  }
}

TEST(VectorQuantizeStateTest, StateDictContinuesTheRun) {
  for (const auto& [name, given] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make(given);
    train(original, 0, 3);
    auto resumed = another(given);
    load_state_dict(*resumed, state_of(original));
    expect_continues_alike(resumed, original);
  }
}

TEST(VectorQuantizeStateTest, TorchSaveContinuesTheRun) {
  for (const auto& [name, given] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make(given);
    train(original, 0, 3);
    std::stringstream file;
    torch::save(original, file);
    auto resumed = another(given);
    torch::load(resumed, file);
    expect_continues_alike(resumed, original);
  }
}

TEST(VectorQuantizeStateTest, AStateOfBeforeTheFirstStepStartsAnew) {
  for (const auto& [name, given] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make(given);
    auto tried = another(given);
    train(tried, 5, 8);
    load_state_dict(*tried, state_of(original));
    expect_continues_alike(tried, original);

    auto fresh = make(given);
    std::stringstream file;
    torch::save(fresh, file);
    torch::load(tried, file);
    expect_continues_alike(tried, fresh);
  }
}

TEST(VectorQuantizeStateTest, AModuleThatIsCastContinuesLikeOneThatLoadsAfterTheCast) {
  for (const auto& [name, given] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make(given);
    train(original, 0, 3);
    auto resumed = another(given);
    resumed->to(torch::kDouble);
    load_state_dict(*resumed, state_of(original));
    original->to(torch::kDouble);
    expect_continues_alike(resumed, original);
  }
}

TEST(VectorQuantizeStateTest, AnArchiveOfAnotherSizeIsRefusedAndChangesNothing) {
  VectorQuantize original(VectorQuantizeOptions(6).codebook_size(16));
  VectorQuantize other(VectorQuantizeOptions(6).codebook_size(32));
  std::stringstream file;
  torch::save(original, file);
  const auto before = state_of(other);
  EXPECT_THROW(torch::load(other, file), c10::ValueError);
  expect_same_state(state_of(other), before);
}

TEST(VectorQuantizeStateTest, StepsThatLearnTogetherGoOnInTheMiddle) {
  const auto given = options().sync_every(3).threshold_ema_dead_code(1);
  auto original = make(given);
  train(original, 0, 5);
  VectorQuantize copy(std::dynamic_pointer_cast<VectorQuantizeImpl>(original->clone()));
  auto loaded = make(given, 7);
  load_state_dict(*loaded, state_of(original));
  auto plain = make(options(), 7);
  load_state_dict(*plain, state_of(original));
  EXPECT_TRUE(at::equal(plain->codebook(), original->codebook()));
  for (auto module : {copy, loaded}) {
    auto twin = make(given, 8);
    load_state_dict(*twin, state_of(original));
    expect_continues_alike(module, twin);
  }
  auto fresh = make(given, 9);
  auto state = state_of(original);
  std::erase_if(state,
                [](const auto& item) { return item.first.find("kept_") != std::string::npos; });
  load_state_dict(*fresh, state);
  EXPECT_EQ(fresh->codebook_state->kept_counts.sum().item<int64_t>(), 0);
}

TEST(VectorQuantizeStateTest, CheckpointOfTheReferenceLoads) {
  auto source = make(options().affine_param(true));
  train(source, 0, 2);
  auto state = state_of(source);
  for (const auto* name : {"rng", "batch_mean_needs_init", "batch_variance_needs_init"}) {
    state.erase(std::string("_codebook.") + name);
  }
  auto module = make(options().affine_param(true), 7);
  const auto seed = module->codebook_state->rng[0].item<int64_t>();
  train(module, 0, 1);
  load_state_dict(*module, state);
  EXPECT_TRUE(at::equal(module->codebook(), source->codebook()));
  EXPECT_FALSE(module->codebook_state->batch_mean_needs_init.item<bool>());
  EXPECT_EQ(module->codebook_state->rng[0].item<int64_t>(), seed);
  EXPECT_EQ(module->codebook_state->rng[1].item<int64_t>(), 0);
}

TEST(VectorQuantizeStateTest, AStateThatCodebooksNoLongerHaveIsLeftOut) {
  auto source = make(options());
  train(source, 0, 1);
  auto state = state_of(source);
  state["_codebook.cooldown"] = at::zeros({1, 8}, at::kLong);
  auto module = make(options(), 7);
  load_state_dict(*module, state);
  expect_same_state(state_of(module), state_of(source));
}

TEST(VectorQuantizeStateTest, WrongCheckpointsAreNamedAndLeaveTheModule) {
  auto module = make(with_adam());
  train(module, 0, 2);
  const auto before = state_of(module);
  const auto refuse = [&](const auto& damage, const std::string& fragment) {
    auto state = state_of(make(with_adam(), 7));
    damage(state);
    expect_throw_with<c10::ValueError>([&] { load_state_dict(*module, state); }, fragment);
    expect_same_state(state_of(module), before);
  };
  refuse([](State& state) { state.erase("_codebook.embed"); },
         "expected the state to have _codebook.embed");
  refuse([](State& state) { state["other"] = at::zeros({1}); }, "but got other");
  refuse([](State& state) { state["_codebook.rng"] = at::zeros({3}, at::kLong); },
         "expected _codebook.rng to have shape [2], but got [3]");
  refuse([](State& state) { state["in_place_codebook_optimizer.0.speed"] = at::zeros({1}); },
         "but got 0.speed");
  refuse([](State& state) { state["in_place_codebook_optimizer.0.exp_avg"] = at::zeros({1}); },
         "expected 0.exp_avg to have shape");
  const std::string own = "in_place_codebook_optimizer.0.";
  refuse([&](State& state) { (state = before).erase(own + "exp_avg"); },
         "expected the in-place optimizer's state to have 0.exp_avg beside 0.exp_avg_sq, but got a "
         "state without it");
  refuse([&](State& state) { (state = before).erase(own + "step"); }, "to have 0.step beside");
  for (const double steps : {-1.0, std::nan(""), 1e300}) {
    refuse(
        [&](State& state) {
          (state = before)[own + "step"] = at::scalar_tensor(steps, at::kDouble);
        },
        "expected 0.step to be a number of steps, 0 or more, but got");
  }
  auto plain = make(options());
  auto state = state_of(plain);
  state["in_place_codebook_optimizer.0.exp_avg"] = at::zeros({1});
  expect_throw_with<c10::ValueError>([&] { load_state_dict(*plain, state); },
                                     "but got in_place_codebook_optimizer.0.exp_avg");
}

TEST(VectorQuantizeStateTest, OptimizersNeedTheStateThatTheirOptionsRead) {
  const auto refuse = [](const Options& plain, const Options& more, const std::string& missing) {
    auto from = make(plain), to = make(more, 7);
    train(from, 0, 2);
    const auto before = state_of(to);
    expect_throw_with<c10::ValueError>([&] { load_state_dict(*to, state_of(from)); },
                                       "to have 0." + missing + " beside");
    expect_same_state(state_of(to), before);
    train(to, 0, 2);
    auto back = make(more, 8);
    load_state_dict(*back, state_of(to));
    expect_continues_alike(back, to);
  };
  namespace optim = torch::optim;
  refuse(in_place<optim::Adam>(optim::AdamOptions(0.05)),
         in_place<optim::Adam>(optim::AdamOptions(0.05).amsgrad(true)), "max_exp_avg_sq");
  refuse(in_place<optim::AdamW>(optim::AdamWOptions(0.05)),
         in_place<optim::AdamW>(optim::AdamWOptions(0.05).amsgrad(true)), "max_exp_avg_sq");
  const optim::RMSpropOptions rmsprop(0.05);
  refuse(in_place<optim::RMSprop>(rmsprop),
         in_place<optim::RMSprop>(optim::RMSpropOptions(rmsprop).momentum(0.9)), "momentum_buffer");
  refuse(in_place<optim::RMSprop>(rmsprop),
         in_place<optim::RMSprop>(optim::RMSpropOptions(rmsprop).centered(true)), "grad_avg");
}

/// A step in inference mode, and then one with gradients, move the codes as after a step without
/// gradients.
void expect_step_in_inference_mode(VectorQuantize one, const CallOptions& call = {}) {
  VectorQuantize two(std::dynamic_pointer_cast<VectorQuantizeImpl>(one->clone()));
  const auto x = normal({2, 30, kDim});
  {
    const c10::InferenceMode mode;
    one(x, call);
  }
  {
    const torch::NoGradGuard no_grad;
    two(x, call);
  }
  one(x), two(x);
  EXPECT_TRUE(at::equal(one->codebook_state->embed, two->codebook_state->embed));
}

TEST(VectorQuantizeStateTest, InPlaceOptimizerStepsInInferenceModeAsWithoutGradients) {
  const auto mask = normal({2, 30}) < 0.5;
  expect_step_in_inference_mode(make(with_adam()), CallOptions().mask(mask));
  expect_step_in_inference_mode(make(with_adam()), CallOptions().lens(torch::tensor({12, 30})));
  expect_step_in_inference_mode(make(with_adam().heads(2).codebook_dim(4)),
                                CallOptions().mask(mask));
  expect_step_in_inference_mode(make(with_adam().affine_param(true)));
  expect_step_in_inference_mode(make(with_adam().threshold_ema_dead_code(1)));
  expect_step_in_inference_mode(make(with_adam().vq_bridge(torch::nn::AnyModule(Bridge()))));
  auto wide = make(with_adam());
  wide->to(at::kDouble);
  expect_step_in_inference_mode(wide);
}

TEST(VectorQuantizeStateTest, ACodebookIsSetFromAViewOfItself) {
  auto module = make(options());
  const auto codes = module->codebook().clone();
  module->set_codebook(module->codebook());
  EXPECT_TRUE(at::equal(module->codebook(), codes));
  module->set_codebook(module->codebook().mul_(2));
  EXPECT_TRUE(at::equal(module->codebook(), codes * 2));
  EXPECT_TRUE(at::equal(module->codebook_state->embed_avg[0], codes * 2));
}

TEST(VectorQuantizeStateTest, CandidatesInEvaluationGoWithAnInPlaceOptimizer) {
  auto module = make(with_adam());
  const auto x = normal({2, 5, kDim});
  const auto call = CallOptions().topk(3);
  expect_throw_with<c10::ValueError>(
      [&] { module(x, call); },
      "VectorQuantize: expected topk to be none in training with in_place_codebook_optimizer, but "
      "got 3");
  module->eval();
  const auto output = module(x, call);
  const auto distances = x.unsqueeze(2) - module->get_codes_from_indices(output.indices);
  EXPECT_TRUE(at::allclose(output.loss, distances.square().mean(-1)));
}

TEST(VectorQuantizeStateTest, ABridgeThatFailsLeavesTheState) {
  for (const bool affine : {false, true}) {
    auto module = make(options().kmeans_init(!affine).affine_param(affine).vq_bridge(
        torch::nn::AnyModule(FragileBridge())));
    expect_undone(module, normal({2, 30, kDim}), 0);
  }
}

TEST(VectorQuantizeStateTest, CastsLeaveTheAveragesWideAndTheSeedWhole) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble, at::kFloat}) {
    auto module = make(options().codebook_dim(3));
    train(module, 0, 1);
    const auto before = state_of(module);
    module->to(dtype);
    EXPECT_EQ(module->project_in->weight.scalar_type(), dtype);
    const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    for (const auto& item : module->codebook_state->named_buffers(/*recurse=*/false)) {
      const auto& old = before.at("_codebook." + item.key());
      EXPECT_EQ(item.value().scalar_type(), old.is_floating_point() ? wide : old.scalar_type());
      EXPECT_TRUE(at::equal(item.value(), old.to(item.value().scalar_type()))) << item.key();
    }
    const auto x = normal({2, 5, kDim}).to(dtype);
    const auto output = module(x);
    EXPECT_EQ(output.quantized.scalar_type(), dtype);
    EXPECT_TRUE(output.quantized.isfinite().all().item<bool>());
    EXPECT_EQ(output.loss.scalar_type(), wide);
  }
}

TEST(VectorQuantizeStateTest, CastParametersAreHalfAndTheirAveragesAreNot) {
  auto module = make(options().orthogonal_reg_weight(0.1));
  module->to(at::kBFloat16);
  EXPECT_EQ(module->codebook_state->embed.scalar_type(), at::kBFloat16);
  EXPECT_EQ(module->codebook_state->embed_avg.scalar_type(), at::kFloat);
  train(module, 0, 2);
  EXPECT_EQ(module->codebook_state->embed.scalar_type(), at::kBFloat16);
}

/// A model that has something of its own under the name of the generator.
struct NamedAlikeImpl : torch::nn::Module {
  explicit NamedAlikeImpl(const torch::Tensor& own) {
    codes = register_module("codes", VectorQuantize(options()));
    rng = register_buffer("rng", own.clone());
  }
  VectorQuantize codes{nullptr};
  torch::Tensor rng;
};

TEST(VectorQuantizeStateTest, ABufferOfTheUsersThatIsCalledRngIsNoGenerator) {
  for (const auto& own : {torch::tensor({7}), torch::tensor({7.0, 8.0}), torch::ones({2, 2})}) {
    NamedAlikeImpl from(own), to(own);
    auto state = state_dict(from);
    const auto before = copy_of(state_dict(to));
    state.erase("rng");
    expect_throw_with<c10::ValueError>([&] { load_state_dict(to, state); },
                                       "expected the state to have rng, but got");
    expect_same_state(state_dict(to), before);
    state["rng"] = own;
    state.erase("codes._codebook.rng");
    load_state_dict(to, state);
    EXPECT_TRUE(at::equal(to.rng, own));
  }
}

}  // namespace
}  // namespace torchvq::vector_quantize_state_test
