// Options that are set later: what only the constructor can give is refused by name, and the others
// count for the level that they are set on.
#include <functional>
#include <string>

#include <torchvq/torchvq.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::options_set_later_test {
namespace {

using namespace torchvq::testing;

constexpr int64_t kDim = 4;
constexpr int64_t kCodes = 8;

Options options() { return Options(kDim).codebook_size(kCodes); }

ResidualVQOptions stack(const Options& vq) {
  return ResidualVQOptions(kDim).num_quantizers(2).codebook_size(kCodes).vq(vq);
}

/// The start of the message for an option that only counts at construction.
std::string at_construction(const std::string& owner, const std::string& option) {
  return owner + ": expected " + option + " to be given to the constructor, which ";
}

TEST(OptionsSetLaterTest, NoiseAndDrawsThatAreSetLater) {
  const auto x = normal({2, 6, kDim});
  FSQ fsq(FSQOptions({5, 5, 3, 3}).preserve_symmetry(true));
  fsq->options.noise_dropout(0.5);
  leaves_no_trace<c10::ValueError>(
      fsq, [&] { fsq(x); },
      at_construction("FSQ", "noise_dropout") +
          "makes the generator of the noise, but got set on the module");
  LFQ lfq(LFQOptions().dim(kDim).codebook_size(16).commitment_loss_weight(1));
  lfq->options.frac_per_sample_entropy(0.5);
  leaves_no_trace<c10::ValueError>(
      lfq, [&] { lfq(x); },
      at_construction("LFQ", "frac_per_sample_entropy") +
          "makes the generator of the draws, but got set on the module");
  fsq->eval();
  lfq->eval();
  EXPECT_NO_THROW(fsq(x));  // evaluation draws nothing
  EXPECT_NO_THROW(lfq(x));
}

TEST(OptionsSetLaterTest, NoNoiseAndNoDrawsSetLaterLeaveTheGenerator) {
  const auto x = normal({2, 6, kDim});
  FSQ fsq(FSQOptions({5, 5, 3, 3}).preserve_symmetry(true).noise_dropout(0.5));
  fsq->options.noise_dropout(0);
  const auto before = fsq->rng.clone();
  EXPECT_TRUE(at::equal(fsq(x).quantized, fsq->quantize(x)));
  EXPECT_TRUE(at::equal(fsq->rng, before));
}

/// In training, with `change` made after construction.
template <typename Stack>
void refuses_later(const Stack& built, const std::function<void(Stack&)>& change,
                   const std::string& fragment) {
  auto stack = built;
  change(stack);
  const auto x = normal({2, 6, kDim});
  leaves_no_trace<c10::ValueError>(stack, [&] { stack(x); }, fragment);
  stack->eval();
  EXPECT_NO_THROW(stack(x));
}

ResidualFSQ scalar_levels() { return ResidualFSQ(ResidualFSQOptions({5, 5, 3, 3}, 2)); }

ResidualLFQ sign_levels(const ResidualLFQOptions& options = ResidualLFQOptions(kDim, 2, 16)) {
  auto own = options;
  own.lfq().commitment_loss_weight(1);
  return ResidualLFQ(own);
}

ResidualSimVQ sim_levels() { return ResidualSimVQ(ResidualSimVQOptions(kDim, 2, kCodes)); }

template <typename Stack, typename Call>
void refuses_dropout(const Stack& stack, const std::string& owner, const Call& call) {
  refuses_later<Stack>(
      stack, [](auto& changed) { changed->options.quantize_dropout(true); },
      at_construction(owner, "quantize_dropout") +
          "makes the generator of the depths (or pass rand_quantize_dropout_fixed_seed to "
          "forward), but got set on the module");
  auto seeded = call;
  stack.ptr()->train();
  EXPECT_NO_THROW(
      stack.ptr()->forward(normal({2, 6, kDim}), seeded.rand_quantize_dropout_fixed_seed(1)));
}

TEST(OptionsSetLaterTest, DropoutThatIsSetLater) {
  refuses_dropout(scalar_levels(), "ResidualFSQ", ResidualFSQForwardOptions());
  refuses_dropout(sign_levels(), "ResidualLFQ", ResidualLFQForwardOptions());
  refuses_dropout(sim_levels(), "ResidualSimVQ", ResidualSimVQForwardOptions());
}

TEST(OptionsSetLaterTest, NoiseOfStacksThatIsSetLater) {
  const auto noise = at_construction("ResidualFSQ", "noise_dropout") +
                     "makes the generator of the noise, but got set on the module";
  const std::function<void(ResidualFSQ&)> set_noise[]{
      [](auto& changed) { changed->options.fsq().noise_dropout(0.5); },
      [](auto& changed) { changed->levels[1]->options.noise_dropout(0.5); }};
  for (const auto& change : set_noise) refuses_later<ResidualFSQ>(scalar_levels(), change, noise);
  const auto draws = at_construction("ResidualLFQ", "frac_per_sample_entropy") +
                     "makes the generator of the draws, but got set on the module";
  const std::function<void(ResidualLFQ&)> set_fraction[]{
      [](auto& changed) { changed->options.lfq().frac_per_sample_entropy(0.5); },
      [](auto& changed) { changed->levels[1]->options.frac_per_sample_entropy(0.5); }};
  for (const auto& change : set_fraction) {
    refuses_later<ResidualLFQ>(sign_levels(), change, draws);
    // The generator of the depths is not that of the levels.
    refuses_later<ResidualLFQ>(sign_levels(ResidualLFQOptions(kDim, 2, 16).quantize_dropout(true)),
                               change, draws);
  }
}

TEST(OptionsSetLaterTest, DropoutOfOneGroupThatIsSetLater) {
  const auto x = normal({2, 6, 2 * kDim});
  GroupedResidualFSQ scalars(
      GroupedResidualFSQOptions(2 * kDim, ResidualFSQOptions({5, 5, 3, 3}, 2)).groups(2));
  scalars->rvqs[1]->options.quantize_dropout(true);
  leaves_no_trace<c10::ValueError>(scalars, [&] { scalars(x); }, "expected quantize_dropout");
}

TEST(OptionsSetLaterTest, TheRotationOfOneLevelIsItsOwn) {
  const auto gradient = [](const std::function<void(VectorQuantizeImpl&)>& change) {
    torch::manual_seed(0);
    ResidualVQ rvq(stack(options().use_cosine_sim(true).rotation_trick(true)));
    change(*rvq->levels[1]);
    const auto x = normal({2, 6, kDim}).requires_grad_();
    rvq(x).quantized.square().sum().backward();
    return x.grad();
  };
  const auto unchanged = gradient([](auto&) {});
  EXPECT_FALSE(at::equal(gradient([](auto& o) { o.options.rotation_trick(false); }), unchanged));
}

TEST(OptionsSetLaterTest, TheMetricOfOneLevelIsItsOwn) {
  ResidualVQ rvq(stack(options()));
  rvq->levels[1]->codebook_state->options.use_cosine_sim(true);
  rvq(normal({2, 60, kDim}));
  const auto learns_unit_vectors = [&](int64_t level) {
    const auto length = rvq->levels[level]->codebook_state->embed.norm(2, -1);
    return at::allclose(length, at::ones_like(length));
  };
  EXPECT_TRUE(learns_unit_vectors(1));
  EXPECT_FALSE(learns_unit_vectors(0));
}

TEST(OptionsSetLaterTest, UpdatesFromTokensHaveTheMetricOfForward) {
  auto module = make(options());
  module->codebook_state->options.use_cosine_sim(true);
  VectorQuantize twin(std::dynamic_pointer_cast<VectorQuantizeImpl>(module->clone()));
  const auto x = normal({2, 60, kDim}) * 3;
  twin->update_ema_indices(x, module(x).indices);
  EXPECT_TRUE(at::equal(twin->codebook_state->embed, module->codebook_state->embed));
  EXPECT_TRUE(at::equal(twin->codebook_state->embed_avg, module->codebook_state->embed_avg));
}

TEST(OptionsSetLaterTest, AffineMapsAndDiveqAreChosenAtConstruction) {
  const auto affine = at_construction("VectorQuantize", "affine_param") +
                      "makes the statistics of the map, but got set on the module";
  const auto diveq = at_construction("ResidualVQ", "diveq") +
                     "sets the options of the levels, but got set on the module";
  const auto x = normal({2, 6, kDim});
  for (const bool built : {false, true}) {
    VectorQuantize vq(options().affine_param(built).kmeans_init(true));
    vq->options.affine_param(!built);
    ResidualVQ rvq(stack(options()).diveq(built));
    rvq->options.diveq(!built);
    GroupedResidualVQ grouped(GroupedResidualVQOptions(2 * kDim).groups(2).rvq(
        stack(options().kmeans_init(true)).diveq(built)));
    grouped->rvqs[1]->options.diveq(!built);
    for (const bool training : {true, false}) {
      vq->train(training);
      leaves_no_trace<c10::ValueError>(vq, [&] { vq(x); }, affine);
    }
    leaves_no_trace<c10::ValueError>(rvq, [&] { rvq(x); }, diveq);
    leaves_no_trace<c10::ValueError>(grouped, [&] { grouped(torch::cat({x, x}, -1)); }, diveq);
    rvq->eval();
    EXPECT_NO_THROW(rvq(x));  // where diveq has no effect
  }
}

TEST(OptionsSetLaterTest, AffineMapsOfOneLevelAreChosenAtConstruction) {
  const auto refusal = at_construction("VectorQuantize", "affine_param") +
                       "makes the statistics of the map, but got set on the module";
  const auto x = normal({2, 6, kDim});
  for (const bool built : {false, true}) {
    const std::function<void(VectorQuantizeImpl&)> changes[]{
        [&](auto& level) { level.options.affine_param(!built); },
        [&](auto& level) { level.codebook_state->options.affine_param(!built); }};
    for (const auto& change : changes) {
      ResidualVQ rvq(stack(options().affine_param(built)));
      GroupedResidualVQ grouped(
          GroupedResidualVQOptions(2 * kDim).groups(2).rvq(stack(options().affine_param(built))));
      HierarchicalVQ hvq(
          HierarchicalVQOptions(kDim, kCodes, {2, 6}).shared_codebook(false).channel_first(false));
      VectorQuantize vq(options().affine_param(built));
      change(*rvq->levels[1]);
      change(*grouped->rvqs[1]->levels[1]);
      // Scales have no affine map.
      hvq->vqs[1]->options.affine_param(true);
      change(*vq);
      for (const bool training : {true, false}) {
        rvq->train(training);
        grouped->train(training);
        hvq->train(training);
        vq->train(training);
        leaves_no_trace<c10::ValueError>(rvq, [&] { rvq(x); }, refusal);
        leaves_no_trace<c10::ValueError>(
            grouped, [&] { grouped(torch::cat({x, x}, -1)); }, refusal);
        leaves_no_trace<c10::ValueError>(hvq, [&] { hvq(x); }, refusal);
        leaves_no_trace<c10::ValueError>(vq, [&] { vq(x); }, refusal);
      }
    }
  }
}

}  // namespace
}  // namespace torchvq::options_set_later_test
