// Codes and averages that are assigned in another number than the module was built with: pruned and
// grown codebooks. A module that was built with that number learns the same.
#include <string>

#include <torchvq/torchvq.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::another_number_of_codes_test {
namespace {

using namespace torchvq::testing;

constexpr int64_t kDim = 4;
constexpr int64_t kCodes = 16;

Options options(int64_t codes) { return Options(kDim).codebook_size(codes); }

/// Gives a quantizer codes with averages, in another number.
void assign(VectorQuantizeImpl& vq, int64_t codes, uint64_t seed) {
  auto& state = *vq.codebook_state;
  state.embed.set_data(normal({1, codes, kDim}, seed));
  state.embed_avg.set_data(state.embed.detach().clone());
  state.cluster_size.set_data(torch::ones({1, codes}));
  vq.options.codebook_size(codes);
  state.options.codebook_size(codes);
}

/// Three steps of `resized` and of `built`, which has the codes by construction.
template <typename Model>
void learn_alike(Model resized, Model built, const torch::Tensor& x) {
  for (int step = 0; step < 3; ++step) {
    const auto own = resized(x + step), other = built(x + step);
    EXPECT_TRUE(at::equal(own.quantized, other.quantized));
    EXPECT_TRUE(at::equal(own.loss, other.loss));
  }
  const auto state = state_dict(*built);
  for (const auto& [name, value] : state_dict(*resized)) {
    EXPECT_TRUE(at::equal(value, state.at(name))) << name;
  }
}

void equal_generators(VectorQuantizeImpl& vq, const VectorQuantizeImpl& other) {
  vq.codebook_state->rng.copy_(other.codebook_state->rng);
}

TEST(AnotherNumberOfCodesTest, TheyTrainAsInAModuleOfThatNumber) {
  const auto x = normal({2, 30, kDim});
  for (const int64_t codes : {12, 24}) {
    for (const double threshold : {0.0, 2.0}) {
      VectorQuantize vq(options(kCodes).threshold_ema_dead_code(threshold));
      VectorQuantize other(options(codes).threshold_ema_dead_code(threshold));
      assign(*vq, codes, 2);
      assign(*other, codes, 2);
      equal_generators(*vq, *other);
      learn_alike(vq, other, x);
      EXPECT_EQ(vq->stats().tokens, 60);
      EXPECT_EQ(vq->stats().replaced, other->stats().replaced);
      EXPECT_EQ(vq->step_counts.size(1), codes);
    }
  }
}

TEST(AnotherNumberOfCodesTest, LevelsAndScalesTakeThem) {
  const auto x = normal({2, 30, kDim});
  const auto stack = [](int64_t codes) {
    return ResidualVQ(
        ResidualVQOptions(kDim).num_quantizers(2).codebook_size(codes).vq(options(codes)));
  };
  const auto scales = [](int64_t codes) {
    return HierarchicalVQ(HierarchicalVQOptions(kDim, codes, {2, 6})
                              .shared_codebook(false)
                              .kmeans_init(false)
                              .channel_first(false));
  };
  for (const int64_t codes : {12, 24}) {
    auto rvq = stack(kCodes), other = stack(codes);
    auto hvq = scales(kCodes), built = scales(codes);
    for (size_t level = 0; level < 2; ++level) {
      for (auto* vq : {rvq->levels[level].get(), other->levels[level].get(), hvq->vqs[level].get(),
                       built->vqs[level].get()}) {
        assign(*vq, codes, level);
      }
      equal_generators(*rvq->levels[level], *other->levels[level]);
      equal_generators(*hvq->vqs[level], *built->vqs[level]);
    }
    hvq->phis[0]->conv->weight.set_data(built->phis[0]->conv->weight.detach().clone());
    hvq->phis[0]->conv->bias.set_data(built->phis[0]->conv->bias.detach().clone());
    learn_alike(rvq, other, x);
    learn_alike(hvq, built, x);
  }
}

TEST(AnotherNumberOfCodesTest, CodesThatDoNotFollowAveragesNeedNone) {
  const auto x = normal({2, 30, kDim});
  for (const int64_t codes : {12, 24}) {
    VectorQuantize by_gradient(options(kCodes).learnable_codebook(true).ema_update(false));
    VectorQuantize frozen(options(kCodes).freeze_codebook(true));
    ResidualVQ rvq(ResidualVQOptions(kDim).num_quantizers(2).codebook_size(kCodes).vq(
        options(kCodes).learnable_codebook(true).ema_update(false)));
    const auto values = normal({1, codes, kDim}, 2);
    by_gradient->codebook_state->embed.set_data(values.clone());
    frozen->codebook_state->embed.set_data(values.clone());
    for (auto& level : rvq->levels) level->codebook_state->embed.set_data(values.clone());
    const auto nearest = torch::cdist(x, values).argmin(-1);
    for (auto& vq : {by_gradient, frozen}) {
      auto module = vq;
      EXPECT_TRUE(at::equal(module(x).indices, nearest));
      EXPECT_EQ(module->step_counts.sum().item<int64_t>(), 60);
      EXPECT_EQ(module->stats().tokens, 60);
      EXPECT_EQ(module->stats().dead, 0);
    }
    EXPECT_TRUE(at::equal(rvq(x).indices.select(-1, 0), nearest));
    EXPECT_EQ(rvq->levels[1]->step_counts.sum().item<int64_t>(), 60);
    // Averages cannot follow codes of another number.
    VectorQuantize averaged(options(kCodes));
    averaged->codebook_state->embed.set_data(values.clone());
    leaves_no_trace<c10::ValueError>(
        averaged, [&] { averaged(x); }, "VectorQuantize: expected embed to have the shape");
  }
}

}  // namespace
}  // namespace torchvq::another_number_of_codes_test
